//! The admin HTTP server of a service: `/livez`, `/readyz`, `/metrics`, `/version`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::drain::Drain;
use crate::http_server::{self, HttpOptions};
use crate::network::Listener;

/// How often the watchdog task runs.
const TICK: Duration = Duration::from_secs(1);
/// A watchdog that has not run for this long means the runtime is stuck, not merely busy.
const STUCK: Duration = Duration::from_secs(10);
/// Connections served at a time: a scraper, a prober and a few people.
const MAX_CONNECTIONS: usize = 64;
/// Time for the head of a request: probes come by new connections, and the silent ones must not keep them out for long.
const HEAD: Duration = Duration::from_secs(5);
/// The media type of OpenMetrics text.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Says whether a service is ready; starts as "no" and, once "yes", follows [`Ready::set`].
#[derive(Clone, Default)]
pub struct Ready {
    ready: Arc<AtomicBool>,
    why: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>>,
}

impl Ready {
    /// Not ready yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Not ready yet; as long as that is so, `why` is asked what stands in the way.
    pub fn explained(why: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { ready: Arc::default(), why: Some(Arc::new(why)) }
    }

    /// Says whether the service is ready.
    pub fn set(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Whether the service is ready.
    pub fn get(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// What stands in the way, if that is known.
    pub fn why(&self) -> Option<String> {
        self.why.as_ref().and_then(|why| why())
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ready").field(&self.get()).finish()
    }
}

/// The admin server of one service.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Name of the service, for `/version`.
    pub service: &'static str,
    /// Version of the service, usually `env!("CARGO_PKG_VERSION")`.
    pub version: &'static str,
    /// What `/readyz` says.
    pub ready: Ready,
    /// What `/metrics` shows.
    pub registry: Arc<Registry>,
}

#[derive(Clone)]
struct Shared {
    admin: Arc<Admin>,
    ticked: watch::Receiver<Instant>,
}

impl Admin {
    /// Serves until `drain` says stop.
    pub async fn serve(self, listener: Listener, drain: Drain) {
        let (tick, ticked) = watch::channel(Instant::now());
        let shared = Shared { admin: Arc::new(self), ticked };
        let app = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/version", get(version))
            .with_state(shared);
        let watchdog = async {
            let mut interval = tokio::time::interval(TICK);
            loop {
                tick.send_replace(interval.tick().await);
            }
        };
        let options = HttpOptions { max_connections: MAX_CONNECTIONS, head_timeout: HEAD };
        tokio::select! {
            () = http_server::serve(listener, app, drain, options, Gauge::default()) => {}
            () = watchdog => {}
        }
    }
}

async fn livez(State(shared): State<Shared>) -> Response {
    let age = shared.ticked.borrow().elapsed();
    if age < STUCK {
        return "ok\n".into_response();
    }
    let text = format!("the watchdog last ran {} s ago\n", age.as_secs());
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn readyz(State(shared): State<Shared>) -> Response {
    if shared.admin.ready.get() {
        "ready\n".into_response()
    } else {
        let text = match shared.admin.ready.why() {
            Some(why) => format!("not ready: {why}\n"),
            None => "not ready\n".to_owned(),
        };
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.admin.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn version(State(shared): State<Shared>) -> Response {
    let Admin { service, version, .. } = &*shared.admin;
    axum::Json(serde_json::json!({ "service": service, "version": version })).into_response()
}
