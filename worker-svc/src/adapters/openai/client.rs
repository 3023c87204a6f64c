//! HTTP to one engine. Each call has a connection of its own, which closes when the answer is dropped: that cancels the work in the engine.

use std::io;
use std::time::Duration;

use armature_svc_kit::secret::Secret;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tower::{Service as _, ServiceExt as _};

use crate::https;

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Where an engine is: `http[s]://host[:port][/path]`, what OpenAI's SDKs call the base URL, with or without its `/v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineUrl(String);

/// Not an engine's URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no URL of an engine: write http://host:port")]
pub struct BadUrl(String);

impl std::str::FromStr for EngineUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl(text.to_owned());
        let base = text.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| bad())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        if !known || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(bad());
        }
        Ok(Self(base.to_owned()))
    }
}

impl std::fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a call gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there.
    #[error("nobody listens there ({0})")]
    Refused(String),
    /// The connection could not be made, or broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// Nothing came in time.
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    /// More came than is taken.
    #[error("an answer of more than {0} bytes")]
    TooLarge(usize),
}

/// A way to one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EngineClient {
    url: EngineUrl,
    connector: HttpsConnector<HttpConnector>,
    api_key: Option<Secret>,
}

/// An answer whose body has not been read. Dropping it closes the connection.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// When to try again, where it says so.
    pub retry_after: Option<Duration>,
    body: Incoming,
    _connection: AbortOnDropHandle<()>,
}

impl EngineClient {
    /// A way to the engine at `url`; `api_key` goes along as a bearer token.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(url: EngineUrl, api_key: Option<Secret>) -> Result<Self, rustls::Error> {
        Ok(Self { url, connector: https::connector(CONNECT)?, api_key })
    }

    /// Where it leads.
    pub fn url(&self) -> &EngineUrl {
        &self.url
    }

    /// GET, read whole: at most `limit` bytes, within `patience`.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn get(
        &self,
        path: &str,
        limit: usize,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let call = async {
            let answer = self.call(Method::GET, path, Bytes::new()).await?;
            let status = answer.status;
            Ok((status, answer.whole(limit).await?))
        };
        timeout(patience, call).await.map_err(|_| CallError::Silent(patience))?
    }

    /// POST of JSON; resolves when the engine has begun to answer.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Result<Answer, CallError> {
        self.call(Method::POST, path, Bytes::from(body.to_string())).await
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, CallError> {
        let broken = |error: &dyn std::fmt::Display| CallError::Broken(error.to_string());
        let uri: Uri =
            format!("{}{path}", self.url).parse().map_err(|error: http::uri::InvalidUri| broken(&error))?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri.path_and_query().map_or("/", |it| it.as_str()))
            .header(header::HOST, uri.authority().map_or("", |it| it.as_str()))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.expose()));
        }
        let request = request.body(Full::new(body)).map_err(|error| broken(&error))?;
        let mut connector = self.connector.clone();
        let stream = connector.ready().await.map_err(|error| not_connected(&*error))?.call(uri).await;
        let stream = stream.map_err(|error| not_connected(&*error))?;
        let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| broken(&error))?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // What goes wrong is told to whoever reads the answer.
            let _ = connection.await;
        }));
        let answer = sender.send_request(request).await.map_err(|error| broken(&cause(&error)))?;
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        Ok(Answer {
            status: answer.status(),
            retry_after: retry_after
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs),
            body: answer.into_body(),
            _connection: connection,
        })
    }
}

impl Answer {
    /// The next bytes; `None` at the end that the engine meant.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, CallError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| CallError::Broken(cause(&error)))?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// All of it.
    ///
    /// # Errors
    /// It broke, or there are more than `limit` bytes.
    pub async fn whole(mut self, limit: usize) -> Result<Bytes, CallError> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if bytes.len() + piece.len() > limit {
                return Err(CallError::TooLarge(limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }
}

/// The innermost cause: the outermost only says that there is one.
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn not_connected(error: &(dyn std::error::Error + 'static)) -> CallError {
    let mut inner = Some(error);
    while let Some(error) = inner {
        if let Some(system) = error.downcast_ref::<io::Error>()
            && system.kind() == io::ErrorKind::ConnectionRefused
        {
            return CallError::Refused(system.to_string());
        }
        inner = error.source();
    }
    CallError::Broken(cause(error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_are_taken_as_people_write_them() {
        for text in ["http://gpu1:8000", "http://gpu1:8000/", "http://gpu1:8000/v1", "http://gpu1:8000/v1/"] {
            assert_eq!(text.parse::<EngineUrl>().unwrap().to_string(), "http://gpu1:8000", "{text}");
        }
        assert_eq!("https://a/llm/v1".parse::<EngineUrl>().unwrap().to_string(), "https://a/llm");
        for text in ["gpu1:8000", "", "ftp://a", "http://", "http://a?x=1", "gpu1"] {
            assert!(text.parse::<EngineUrl>().is_err(), "{text}");
        }
    }
}
