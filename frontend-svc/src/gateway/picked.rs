//! What a decision means to Envoy: an endpoint, and headers for who serves there.

use bytes::Bytes;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use super::wire;
use crate::domain::pin;
use crate::http::error::ApiError;
use crate::ports::Decision;

/// Header, and key of the metadata, with the endpoint; the names are the protocol's.
const ENDPOINT: &str = "x-gateway-destination-endpoint";
/// Namespace of the metadata.
const NAMESPACE: &str = "envoy.lb";
/// Header with the decision's name, for explanations.
const DECISION: &str = "x-armature-decision-id";

/// Where a request goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    endpoint: String,
    set: Vec<(&'static str, String)>,
    remove: Vec<&'static str>,
}

impl Destination {
    /// A frontend, for what needs no decision. Pins of the client's own are not passed on.
    pub fn frontend(endpoint: &str) -> Self {
        Self { endpoint: endpoint.into(), set: Vec::new(), remove: vec![pin::DECODE, pin::PREFILL] }
    }

    /// A frontend that will ask for the workers of `decision`.
    pub fn pinned(endpoint: &str, decision: &Decision) -> Self {
        let mut it = Self { endpoint: endpoint.into(), set: Vec::new(), remove: Vec::new() };
        it.set.push((pin::DECODE, decision.decode.worker.to_string()));
        match decision.prefill.first() {
            Some(prefill) => it.set.push((pin::PREFILL, prefill.worker.to_string())),
            None => it.remove.push(pin::PREFILL),
        }
        it.named(decision)
    }

    /// The engine behind the chosen worker.
    pub fn engine(endpoint: &str, decision: &Decision) -> Self {
        Self::frontend(endpoint).named(decision)
    }

    fn named(mut self, decision: &Decision) -> Self {
        self.set.push((DECISION, decision.decision_id.clone()));
        self
    }

    /// The headers, as Envoy is to change them.
    pub(super) fn mutation(&self) -> wire::HeaderMutation {
        let set = self.set.iter().map(|(name, value)| (*name, value));
        wire::HeaderMutation {
            set_headers: std::iter::once((ENDPOINT, &self.endpoint)).chain(set).map(header).collect(),
            remove_headers: self.remove.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// The endpoint once more, where load balancers look for it.
    pub(super) fn metadata(&self) -> Struct {
        let endpoint = (ENDPOINT.to_owned(), value(Kind::StringValue(self.endpoint.clone())));
        let inner = Struct { fields: [endpoint].into() };
        Struct { fields: [(NAMESPACE.to_owned(), value(Kind::StructValue(inner)))].into() }
    }
}

/// The answer to a client whose request goes nowhere, in OpenAI's shape.
pub(super) fn refusal(error: &ApiError) -> wire::ImmediateResponse {
    let kind = ("content-type", &"application/json".to_owned());
    let retry = error.retry_after_seconds().map(|seconds| seconds.to_string());
    let retry = retry.as_ref().map(|seconds| ("retry-after", seconds));
    wire::ImmediateResponse {
        status: Some(wire::HttpStatus { code: error.status.as_u16().into() }),
        headers: Some(wire::HeaderMutation {
            set_headers: std::iter::once(kind).chain(retry).map(header).collect(),
            remove_headers: Vec::new(),
        }),
        body: Bytes::from(error.json().to_string()),
        details: error.code.clone().unwrap_or_default(),
    }
}

fn header((name, value): (&str, &String)) -> wire::HeaderValueOption {
    let raw_value = Bytes::from(value.clone());
    wire::HeaderValueOption {
        header: Some(wire::HeaderValue { key: name.into(), value: String::new(), raw_value }),
        append_action: wire::header_value_option::AppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}
