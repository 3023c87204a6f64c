//! Who asks, until when, and how long for a worker that has room.

use std::time::Duration;

use armature_svc_kit::call::{Call, RequestId};
use http::{HeaderMap, HeaderName};

use crate::domain::params::Invalid;
use crate::domain::pin::Pin;

/// Names how long a request may wait for room at a worker, in milliseconds.
pub const X_MAX_QUEUE: HeaderName = HeaderName::from_static("x-armature-max-queue-ms");
/// Longest name of a tenant, bytes.
pub const MAX_TENANT_BYTES: usize = 256;

/// Who asks, and until when.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Request id, deadline of the caller (`None`: it named none) and trace; travels with every call made for the request.
    pub call: Call,
    /// From authentication; empty without one.
    pub tenant: String,
    /// Workers that a gateway has chosen.
    pub pin: Option<Pin>,
    /// How long it wants to wait for room; `None`: as the deployment has it.
    pub max_queue: Option<Duration>,
}

impl Caller {
    /// The request id.
    pub fn request_id(&self) -> &str {
        self.call.request_id.as_ref().map_or("", RequestId::as_str)
    }

    /// Reads what the headers of a request say; `tenant` is the one in which a trusted proxy names whom it has authenticated.
    pub fn from_headers(
        call: Call,
        headers: &HeaderMap,
        tenant: Option<&HeaderName>,
    ) -> Result<Self, Invalid> {
        let tenant = match tenant {
            Some(name) => text(headers, name)?.unwrap_or_default(),
            None => "",
        };
        if tenant.len() > MAX_TENANT_BYTES {
            let message = format!("a tenant of {} bytes, the limit is {MAX_TENANT_BYTES}", tenant.len());
            return Err(Invalid::new("tenant", message));
        }
        let max_queue = text(headers, &X_MAX_QUEUE)?.map(milliseconds).transpose()?;
        Ok(Self { call, tenant: tenant.to_owned(), pin: None, max_queue })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Invalid> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Invalid::new(name.as_str(), "must be printable ASCII"))
}

fn milliseconds(text: &str) -> Result<Duration, Invalid> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let message = format!("{text:?} is not a whole number of milliseconds");
        return Err(Invalid::new(X_MAX_QUEUE.as_str(), message));
    }
    // More than fits is more than anybody waits.
    Ok(Duration::from_millis(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use http::HeaderValue;

    fn read(value: &[u8]) -> Result<Caller, Invalid> {
        let mut headers = HeaderMap::new();
        headers.insert(X_MAX_QUEUE, HeaderValue::from_bytes(value).unwrap());
        Caller::from_headers(Call::default(), &headers, None)
    }

    #[test]
    fn a_wait_is_a_whole_number_of_milliseconds() {
        assert_eq!(read(b"0").unwrap().max_queue, Some(Duration::ZERO));
        assert_eq!(read(b"1500").unwrap().max_queue, Some(Duration::from_millis(1500)));
        let huge = read(&[b'9'; 100]).unwrap().max_queue.unwrap();
        assert!(huge > Duration::from_secs(1 << 40));
        for wrong in ["", "-1", "1.5", "NaN", "inf", "1e3", "+5", " 5"] {
            assert_eq!(read(wrong.as_bytes()).unwrap_err().param, "x-armature-max-queue-ms", "{wrong:?}");
        }
        assert!(read(&[0xff]).is_err());
    }

    #[test]
    fn only_the_trusted_header_names_a_tenant() {
        let name = HeaderName::from_static("x-tenant");
        let mut headers = HeaderMap::new();
        headers.insert(&name, HeaderValue::from_static("acme"));
        let read = |headers: &HeaderMap, name| Caller::from_headers(Call::default(), headers, name);
        assert_eq!(read(&headers, None).unwrap().tenant, "");
        assert_eq!(read(&headers, Some(&name)).unwrap().tenant, "acme");
        assert_eq!(read(&HeaderMap::new(), Some(&name)).unwrap().tenant, "");
        headers.insert(&name, HeaderValue::from_str(&"x".repeat(257)).unwrap());
        assert_eq!(read(&headers, Some(&name)).unwrap_err().param, "tenant");
    }
}
