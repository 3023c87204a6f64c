//! HTTP/1.1 connections: a bounded number, none held open by a client that says nothing, all of them over when the service is.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::drain::Drain;
use crate::network::{Connection, Listener};

/// How long open connections may go on after the listener has stopped.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What connections may take.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Connections open at a time; others wait to be accepted.
    pub max_connections: usize,
    /// Time for the head of a request, and of an idle connection until the next one.
    pub head_timeout: Duration,
}

/// Serves `routes` until `drain` says stop; `open` shows the open connections. Dropping the future cuts all of them.
pub async fn serve(listener: Listener, routes: Router, drain: Drain, options: HttpOptions, open: Gauge) {
    let mut listener = listener.limit(options.max_connections);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.head_timeout);
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = drain.stopping() => break,
        };
        let (http, routes, drain, open) = (http.clone(), routes.clone(), drain.clone(), open.clone());
        connections.spawn(async move {
            open.inc();
            serve_one(http, connection, routes, drain).await;
            open.dec();
        });
    }
    // What is left after it is cut when the set is dropped.
    let _ = timeout(STOP_GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve_one(http: http1::Builder, connection: Connection, routes: Router, drain: Drain) {
    let served = http.serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = drain.stopping() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
