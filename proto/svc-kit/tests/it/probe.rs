//! A gRPC service that does what its method is called, and a client that sees all of an answer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use armature_svc_kit::address::Address;
use armature_svc_kit::call::Call;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::{Service, ServiceExt as _};

/// One empty protobuf message, framed.
const MESSAGE: &[u8] = &[0; 5];

/// Serves `Echo`, `Flood`, `Forward`, `Hang`, `Panic`, `Stream` and `StreamPanic`.
#[derive(Clone, Default)]
pub(crate) struct Probe {
    /// Where `Forward` sends an `Echo`.
    pub(crate) next: Option<Channel>,
    /// Calls of `Hang` and `Stream` that are alive.
    pub(crate) alive: Alive,
}

/// Counts what lives, so that a test can wait for it to go.
#[derive(Clone)]
pub(crate) struct Alive(Arc<watch::Sender<usize>>);

impl Default for Alive {
    fn default() -> Self {
        Self(Arc::new(watch::channel(0).0))
    }
}

impl Alive {
    fn enter(&self) -> Life {
        self.0.send_modify(|count| *count += 1);
        Life(self.0.clone())
    }

    pub(crate) async fn reaches(&self, wanted: usize) {
        self.0.subscribe().wait_for(|count| *count == wanted).await.unwrap();
    }
}

struct Life(Arc<watch::Sender<usize>>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl NamedService for Probe {
    const NAME: &'static str = "test.Probe";
}

impl Service<Request<Body>> for Probe {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { next, alive } = self.clone();
        Box::pin(async move {
            let answer = match request.uri().path().rsplit('/').next().unwrap() {
                "Echo" => {
                    let mut answer = stream(futures_util::stream::iter([Ok(message()), Ok(ok())]));
                    // What the handler's task carries, which is what a call made here would send.
                    let call = Call::current().unwrap();
                    assert_eq!(request.extensions().get::<Call>(), Some(&call));
                    call.write_headers(answer.headers_mut(), Instant::now());
                    answer
                }
                "Forward" => next.unwrap().oneshot(self::request("Echo", &[])).await.unwrap(),
                "Hang" => {
                    let _life = alive.enter();
                    std::future::pending().await
                }
                "Panic" => panic!("probe panics"),
                "Stream" => {
                    let life = alive.enter();
                    let ticks = futures_util::stream::unfold(life, |life| async {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        Some((Ok(message()), life))
                    });
                    stream(ticks)
                }
                "Flood" => {
                    let life = alive.enter();
                    let flood = futures_util::stream::unfold(life, |life| async {
                        tokio::task::yield_now().await;
                        Some((Ok(message()), life))
                    });
                    stream(flood)
                }
                "StreamPanic" => {
                    let steps = futures_util::stream::iter([0, 1]).map_step();
                    stream(steps)
                }
                other => Status::unimplemented(other).into_http(),
            };
            Ok(answer)
        })
    }
}

trait MapStep {
    fn map_step(self) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Status>> + Send + 'static;
}

impl<S: futures_util::Stream<Item = i32> + Send + 'static> MapStep for S {
    fn map_step(self) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Status>> + Send + 'static {
        futures_util::StreamExt::map(self, |step| if step == 0 { Ok(message()) } else { panic!("late") })
    }
}

fn message() -> Frame<Bytes> {
    Frame::data(Bytes::from_static(MESSAGE))
}

fn ok() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    Frame::trailers(trailers)
}

fn stream(
    frames: impl futures_util::Stream<Item = Result<Frame<Bytes>, Status>> + Send + 'static,
) -> Response<Body> {
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    response
}

/// A request for a method of [`Probe`].
pub(crate) fn request(method: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let body = http_body_util::Full::new(Bytes::from_static(MESSAGE));
    let mut request =
        Request::post(format!("http://probe/test.Probe/{method}")).body(Body::new(body)).unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

/// All of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) headers: HeaderMap,
    pub(crate) messages: usize,
}

/// Calls a method of [`Probe`] and reads the answer to its end.
pub(crate) async fn call(channel: &Channel, method: &str, headers: &[(&'static str, &str)]) -> Answer {
    let response = match channel.clone().oneshot(request(method, headers)).await {
        Ok(response) => response,
        Err(error) => {
            let (status, headers) = (Status::from_error(error.into()), HeaderMap::new());
            return Answer { status, headers, messages: 0 };
        }
    };
    let (head, mut body) = response.into_parts();
    let mut status = Status::from_header_map(&head.headers);
    let mut messages = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) if frame.is_data() => messages += 1,
            Ok(frame) => status = Status::from_header_map(frame.trailers_ref().unwrap()),
            Err(error) => {
                status = Some(error);
                break;
            }
        }
    }
    let status = status.unwrap_or_else(|| Status::new(Code::Unknown, "no status"));
    Answer { status, headers: head.headers, messages }
}

/// A served [`Probe`] and what is needed to talk to it.
pub(crate) struct Served {
    pub(crate) network: Network,
    pub(crate) address: Address,
    pub(crate) metrics: ServerMetrics,
    pub(crate) drain: Drain,
    pub(crate) task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start(network: &Network, name: &str, options: ServerOptions, probe: Probe) -> Self {
        let address = Address::mem(name);
        let listener = network.bind(&address).await.unwrap();
        let (metrics, drain) = (ServerMetrics::new(&mut Registry::default()), Drain::new());
        let server = Server::new(options, metrics.clone())
            .service(probe)
            .descriptors(armature_contracts::FILE_DESCRIPTOR_SET);
        let serve = server.serve(listener, drain.clone());
        let task = tokio::spawn(async move { serve.await.unwrap() });
        Self { network: network.clone(), address, metrics, drain, task }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channels(ChannelOptions::default()).to(&self.address)
    }

    pub(crate) fn channels(&self, options: ChannelOptions) -> Channels {
        Channels::new(self.network.clone(), options).unwrap()
    }
}
