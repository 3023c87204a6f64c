//! Reads a request's body, up to a limit.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use super::error::ApiError;
use crate::domain::params::Invalid;

/// Time for a whole body: a client that sends slower holds a connection for nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which the rest of a refused body is read: the client of a connection that is closed while it sends sees the connection
/// break instead of the answer.
const LINGER: Duration = Duration::from_secs(5);
/// Longer bodies are parsed off the runtime threads: about a millisecond of work.
const INLINE_BYTES: usize = 64 * 1024;

/// Reads the body and parses it with `parse`. One that says it is something else than JSON is refused: a form of any web page could
/// send it.
pub async fn parsed<T: Send + 'static>(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    parse: fn(&[u8]) -> Result<T, Invalid>,
) -> Result<T, ApiError> {
    let bytes = match read(headers, &mut body, limit).await {
        Ok(bytes) => bytes,
        Err(refusal) => {
            // A client that asks first has sent nothing.
            if !headers.contains_key(header::EXPECT) && refusal.status != StatusCode::REQUEST_TIMEOUT {
                let _ = timeout(LINGER, discard(body)).await;
            }
            return Err(refusal);
        }
    };
    read_by(parse, bytes).await
}

/// Parses a body with `parse`, a long one off the runtime threads.
pub async fn read_by<T: Send + 'static>(
    parse: fn(&[u8]) -> Result<T, Invalid>,
    bytes: Bytes,
) -> Result<T, ApiError> {
    let result = if bytes.len() > INLINE_BYTES {
        tokio::task::spawn_blocking(move || parse(&bytes)).await.map_err(|_| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the body could not be parsed")
        })?
    } else {
        parse(&bytes)
    };
    Ok(result?)
}

async fn read(headers: &HeaderMap, body: &mut Body, limit: usize) -> Result<Bytes, ApiError> {
    let too_long = || {
        let message = format!("the body is longer than the limit of {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    if headers.get(header::CONTENT_TYPE).is_some_and(|kind| !is_json(kind)) {
        let message = "the body must be JSON, with content-type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    }
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
    match timeout(PATIENCE, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Err(_) => {
            let message = format!("the body did not come within {} s", PATIENCE.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message))
        }
        Ok(Err(_)) => {
            Err(ApiError::new(StatusCode::BAD_REQUEST, "body_incomplete", "the body could not be read"))
        }
    }
}

/// Reads what nobody wants.
async fn discard(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

fn is_json(kind: &HeaderValue) -> bool {
    let kind = kind.to_str().unwrap_or_default();
    kind.split(';').next().is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"))
}
