//! As much of Consul's HTTP API as discovery needs, and nothing newer than Consul 1.8.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::metrics::ConsulMetrics;
use super::settings::{ConsulSettings, SettingsError};
use super::tls;

/// The largest answer that is read: all entries of a component, ten times the bound of instances.
const MAX_ANSWER_BYTES: usize = 384 * 1024 * 1024;
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// Longest wait for an answer that does not block.
pub const ANSWER: Duration = Duration::from_secs(2);
/// How much of a refusal is told.
const MAX_TOLD: usize = 200;

/// Why Consul did not do what it was asked; says which key of the configuration to look at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It cannot be reached or does not answer.
    #[error("Consul does not answer at {url} (consul.url): {why}")]
    Away {
        /// Where it was asked.
        url: String,
        /// What the system said.
        why: String,
    },
    /// One side does not trust the other.
    #[error("no TLS with Consul at {url} (consul.ca_file, consul.cert_file, consul.key_file): {why}")]
    Tls {
        /// Where it was asked.
        url: String,
        /// What is not trusted.
        why: String,
    },
    /// The token may not.
    #[error("Consul does not let this token do that (consul.token): {operation}: {why}")]
    Denied {
        /// What was asked.
        operation: &'static str,
        /// Consul's words.
        why: String,
    },
    /// Anything else that Consul says instead of doing it.
    #[error("Consul refuses {operation} with {status}: {why}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// As an HTTP status.
        status: u16,
        /// Consul's words.
        why: String,
    },
}

impl CallError {
    /// A label of bounded range.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Away { .. } => "away",
            Self::Tls { .. } => "tls",
            Self::Denied { .. } => "denied",
            Self::Refused { .. } => "refused",
        }
    }
}

/// What is asked of Consul.
#[derive(Clone, Debug)]
pub struct Ask {
    /// For metrics and errors: one of few.
    pub operation: &'static str,
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Bytes,
    limit: Duration,
}

impl Ask {
    /// Reads `path`, which begins with `/v1/` and is percent-encoded.
    pub fn get(operation: &'static str, path: impl Into<String>) -> Self {
        let path = path.into();
        Self { operation, method: Method::GET, path, query: Vec::new(), body: Bytes::new(), limit: ANSWER }
    }

    /// Writes `path`.
    pub fn put(operation: &'static str, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method: Method::PUT, body: body.into(), ..Self::get(operation, path) }
    }

    /// Deletes `path`.
    pub fn delete(operation: &'static str, path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(operation, path) }
    }

    /// Adds a parameter whose value needs no encoding.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    /// Waits longer than [`ANSWER`].
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// What Consul answers.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether there is such a thing.
    pub found: bool,
    /// `X-Consul-Index`; 0 when there is none.
    pub index: u64,
    /// JSON, or the raw bytes of a value.
    pub body: Bytes,
}

/// A client of one agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: String,
    datacenter: Option<String>,
    token: Option<HeaderValue>,
    metrics: ConsulMetrics,
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(settings: &ConsulSettings, metrics: ConsulMetrics) -> Result<Self, SettingsError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::client(settings)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        let token = settings.token.as_ref().map(|token| {
            let mut value = HeaderValue::try_from(token.expose()).map_err(|_| SettingsError::Token)?;
            value.set_sensitive(true);
            Ok(value)
        });
        let (url, datacenter) = (settings.url.clone(), settings.datacenter.clone());
        Ok(Self { http, url, datacenter, token: token.transpose()?, metrics })
    }

    /// Asks once.
    pub async fn ask(&self, ask: Ask) -> Result<Answer, CallError> {
        let operation = ask.operation;
        let answer = self.asked(ask).await;
        self.metrics.called(operation, answer.as_ref().err().map(CallError::kind));
        answer
    }

    async fn asked(&self, ask: Ask) -> Result<Answer, CallError> {
        let away = |why: String| CallError::Away { url: self.url.clone(), why };
        let (operation, limit) = (ask.operation, ask.limit);
        let request = self.request(ask).map_err(|error| away(error.to_string()))?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|error| self.failed(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            Ok((head, body.map_err(|error| away(error.to_string()))?.to_bytes()))
        };
        let (head, body) =
            timeout(limit, exchange).await.unwrap_or_else(|_| Err(away("no answer in time".into())))?;
        let index = HeaderName::from_static("x-consul-index");
        let index = head.headers.get(index).and_then(|it| it.to_str().ok()).and_then(|it| it.parse().ok());
        let answer = Answer { found: head.status.is_success(), index: index.unwrap_or(0), body };
        match head.status {
            status if status.is_success() => Ok(answer),
            // Also what an agent says of an unknown check or session.
            StatusCode::NOT_FOUND => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(CallError::Denied { operation, why: told(&answer.body) })
            }
            status => Err(CallError::Refused { operation, status: status.as_u16(), why: told(&answer.body) }),
        }
    }

    fn request(&self, ask: Ask) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut target = format!("{}{}", self.url, ask.path);
        let datacenter = self.datacenter.iter().map(|name| ("dc", name.clone()));
        for (turn, (name, value)) in ask.query.into_iter().chain(datacenter).enumerate() {
            target.push(if turn == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.push_str(&value);
        }
        let request = Request::builder().method(ask.method).uri(target.parse::<Uri>()?);
        let request = match &self.token {
            Some(token) => request.header("x-consul-token", token),
            None => request,
        };
        request.body(Full::new(ask.body))
    }

    fn failed(&self, error: &legacy::Error) -> CallError {
        let url = self.url.clone();
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            why = cause.to_string();
            if is_tls(cause) {
                return CallError::Tls { url, why };
            }
            source = cause.source();
        }
        CallError::Away { url, why }
    }
}

/// The TLS library's errors come inside those of the system, which do not name them as their source.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_tls(inner))
}

fn told(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(MAX_TOLD)]).trim().to_owned()
}
