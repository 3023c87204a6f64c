//! Whatever comes from outside is read or refused; nothing panics.

use armature_svc_kit::address::Address;
use armature_svc_kit::call::{Call, RequestId};
use armature_svc_kit::config;
use armature_svc_kit::grpc_timeout;
use armature_svc_kit::telemetry::TelemetryConfig;
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tokio::time::Instant;

/// Text that is near to what is meant, and text that is not.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[\\[\\]:a-z0-9./@#=\\\" \\-\n]{0,60}",
        "[0-9]{0,12}[HMSmun]?",
        "0[0f]-[0-9a-f]{30,34}-[0-9a-f]{14,18}-[0-9a-f]{0,3}(-x)?",
    ]
}

proptest! {
    #[test]
    fn text_is_read_or_refused(text in text()) {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
        if let Some(limit) = grpc_timeout::decode(&text) {
            grpc_timeout::encode(limit);
        }
        if let Some(id) = RequestId::parse(&text) {
            prop_assert_eq!(id.as_str(), &text);
        }
        prop_assert!(config::defaults_table("probe", &text).starts_with("| key |"));
        let _ = config::parse_toml::<TelemetryConfig>(&text);
    }

    #[test]
    fn headers_are_read_or_ignored(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 4)) {
        let names = ["grpc-timeout", "x-request-id", "traceparent", "tracestate"];
        let mut headers = HeaderMap::new();
        for (name, value) in names.into_iter().zip(&values) {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(name, value);
            }
        }
        let now = Instant::now();
        let call = Call::from_headers(&headers, now);
        let mut written = HeaderMap::new();
        call.write_headers(&mut written, now);
        prop_assert_eq!(Call::from_headers(&written, now), call);
    }
}
