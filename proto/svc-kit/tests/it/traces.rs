//! Logs and traces of a whole process, seen from outside it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use armature_svc_kit::address::Address;
use armature_svc_kit::call::Call;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::layers::context::ContextLayer;
use armature_svc_kit::layers::panics::PanicLayer;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use armature_svc_kit::telemetry::{LogFormat, Telemetry, TelemetryConfig};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Layer as _, Service, ServiceExt as _};

const COLLECTOR: &str = "ARMATURE_TEST_COLLECTOR";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Takes exports and hands their bytes on.
#[derive(Clone)]
struct Collector(mpsc::Sender<Vec<u8>>);

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<Request<Body>> for Collector {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self(exports) = self.clone();
        Box::pin(async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            exports.send(bytes.to_vec()).await.unwrap();
            let answer = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let answer = answer.with_trailers(std::future::ready(Some(Ok(trailers))));
            let mut response = Response::new(Body::new(answer));
            response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            Ok(response)
        })
    }
}

#[tokio::test]
async fn a_process_exports_its_spans_and_logs_without_request_text() {
    let network = Network::new();
    let listener = network.bind(&Address::tcp("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.address());
    let (exports, mut exported) = mpsc::channel(16);
    let metrics = ServerMetrics::new(&mut Registry::default());
    let server = Server::new(ServerOptions::default(), metrics).service(Collector(exports));
    let served = tokio::spawn(server.serve(listener, Drain::new()));

    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "traces::in_a_process_of_its_own", "--nocapture"])
        .env(COLLECTOR, endpoint)
        .env_remove("RUST_LOG")
        .kill_on_drop(true)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().await.unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");

    // The span carries its method, the trace of its caller and the service's name.
    let export = exported.recv().await.unwrap();
    let has = |part: &[u8]| export.windows(part.len()).any(|window| window == part);
    assert!(has(b"/test.Traced/Method"));
    assert!(has(b"armature-probe"));
    assert!(has(&0x0af7651916cd43dd8448eb211c80319c_u128.to_be_bytes()));

    let panics: Vec<serde_json::Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &serde_json::Value| line["level"] == "ERROR")
        .collect();
    assert_eq!(panics.len(), 1, "{log}");
    assert_eq!(panics[0]["span"]["method"], "/test.Traced/Method");
    assert!(panics[0]["location"].as_str().unwrap().contains("traces.rs"));
    assert!(!log.contains("a piece of a prompt"), "{log}");
    served.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above, because telemetry is set up once in a process"]
async fn in_a_process_of_its_own() {
    let config = TelemetryConfig {
        log_format: LogFormat::Json,
        otlp_endpoint: Some(std::env::var(COLLECTOR).unwrap()),
        ..TelemetryConfig::default()
    };
    let telemetry = Telemetry::start(&config, "probe").unwrap();
    assert!(Telemetry::start(&config, "probe").is_err());

    let handler = tower::service_fn(|request: Request<Body>| async move {
        // What would be sent on is a child of the caller's span, not the caller's own position.
        let mut headers = HeaderMap::new();
        let call = request.extensions().get::<Call>().unwrap();
        call.write_headers(&mut headers, tokio::time::Instant::now());
        let sent = headers["traceparent"].to_str().unwrap();
        assert_eq!(sent[..36], PARENT[..36]);
        assert_ne!(sent, PARENT);
        if request.headers().contains_key("x-panic") {
            panic!("a piece of a prompt");
        }
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let service = ContextLayer.layer(PanicLayer::new(Default::default()).layer(handler));
    for panics in [false, true] {
        let mut request = Request::post("http://probe/test.Traced/Method").body(Body::empty()).unwrap();
        request.headers_mut().insert("traceparent", PARENT.parse().unwrap());
        if panics {
            request.headers_mut().insert("x-panic", "1".parse().unwrap());
        }
        let response = service.clone().oneshot(request).await.unwrap();
        let code = response.headers().get("grpc-status").map(|code| code.as_bytes());
        assert_eq!(code, panics.then_some(b"13".as_slice()));
    }
    tokio::task::spawn_blocking(|| telemetry.shutdown()).await.unwrap();
}
