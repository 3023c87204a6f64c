//! W3C trace context, in and out of gRPC metadata and HTTP headers (both are header maps).
//!
//! A service that exports traces puts its own span into what it sends; one that does not hands on
//! what it received, so that a trace does not break at it.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Header of the trace and span ids.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header of vendors' additions.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// A longer `tracestate` is dropped, as the specification allows beyond 512 characters.
const MAX_TRACESTATE_BYTES: usize = 512;

/// The position in a trace that a caller hands to a callee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// Reads it from headers; `None` if there is none or it is malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let (trace_id, span_id, flags) = parse_traceparent(text(TRACEPARENT)?)?;
        let state = text(TRACESTATE)
            .filter(|state| state.len() <= MAX_TRACESTATE_BYTES)
            .and_then(|state| state.parse::<TraceState>().ok())
            .unwrap_or_default();
        let context = SpanContext::new(trace_id, span_id, flags, true, state);
        context.is_valid().then_some(Self(context))
    }

    /// Writes it into headers, replacing what is there.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        let Self(context) = self;
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8() & 1);
        if let Ok(value) = HeaderValue::try_from(format!("00-{trace}-{span}-{flags:02x}")) {
            headers.insert(TRACEPARENT, value);
        }
        match HeaderValue::try_from(context.trace_state().header()) {
            Ok(value) if !value.is_empty() => headers.insert(TRACESTATE, value),
            _ => headers.remove(TRACESTATE),
        };
    }

    /// The position of the current span; `None` unless traces are exported.
    pub fn of_current_span() -> Option<Self> {
        let context = Span::current().context().span().span_context().clone();
        context.is_valid().then_some(Self(context))
    }

    /// Makes `span` a child of this position; without effect unless traces are exported.
    pub fn set_parent_of(&self, span: &Span) {
        let parent = opentelemetry::Context::new().with_remote_span_context(self.0.clone());
        // Fails only for a span that is disabled or has started, where there is nothing to set.
        let _ = span.set_parent(parent);
    }

    /// The trace id, 32 hex digits.
    pub fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }
}

fn parse_traceparent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut fields = text.trim().split('-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_hex = |field: &str, length| {
        field.len() == length && field.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    };
    // A later version may append fields; version 00 has exactly four, ff is forbidden.
    let shaped = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    if !shaped || version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    Some((TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(parent: &str, state: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, parent.parse().unwrap());
        headers.insert(TRACESTATE, state.parse().unwrap());
        headers
    }

    #[test]
    fn passes_through_unchanged() {
        let given = headers(PARENT, "vendor=value");
        let mut written = HeaderMap::new();
        TraceContext::from_headers(&given).unwrap().write_headers(&mut written);
        assert_eq!(written, given);
    }

    #[test]
    fn malformed_is_absent() {
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ] {
            assert_eq!(TraceContext::from_headers(&headers(wrong, "")), None, "{wrong}");
        }
        let later = headers("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra", "");
        assert!(TraceContext::from_headers(&later).is_some());
    }
}
