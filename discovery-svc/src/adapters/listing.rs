//! The text of an instance file: static instances, their cards, the files of their artifacts.
//!
//! ```toml
//! [[instance]]
//! id = "00000000000000a1"            # 16 hex digits, not 0
//! component = "worker"
//! addresses = { grpc = "10.0.0.7:7500", kv = "10.0.0.7:7501" }
//! card = "tiny"
//! # also: namespace, status ("starting", "ready", "draining"), labels, boot_id
//!
//! [card.tiny]
//! served_name = "tiny"
//! model_digest = "64 hex digits"
//! tokenizer = "tiny/tokenizer.json"  # relative to this file
//! template = "tiny/template.json"
//! context_length = 4096
//! block_size = 16
//! # or, instead of these fields: file = "tiny.card", the bytes of a ModelCard; tokenizer and template are then only stored
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use armature_contracts::discovery::v1::{Limits, ModelCard, Role};
use serde::Deserialize;
use toml::Spanned;

use crate::domain::instance::{Component, Status};

/// A text that is no listing, with the line (from 1) that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ListingError {
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: String,
}

/// An instance file as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listing {
    /// Static instances.
    #[serde(rename = "instance")]
    pub instances: Vec<Spanned<ListedInstance>>,
    /// Cards by the name that instances use.
    #[serde(rename = "card")]
    pub cards: BTreeMap<String, Spanned<ListedCard>>,
}

/// One static instance as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "as of domain::instance::Instance")]
pub struct ListedInstance {
    pub id: Spanned<String>,
    pub namespace: Option<String>,
    pub component: ListedComponent,
    pub addresses: BTreeMap<String, String>,
    pub card: Option<Spanned<String>>,
    #[serde(default)]
    pub status: ListedStatus,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub boot_id: String,
}

/// A component by its name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "as of domain::instance::Component")]
pub enum ListedComponent {
    Worker,
    Router,
    Frontend,
    Planner,
    Kvbm,
}

impl From<ListedComponent> for Component {
    fn from(component: ListedComponent) -> Self {
        match component {
            ListedComponent::Worker => Self::Worker,
            ListedComponent::Router => Self::Router,
            ListedComponent::Frontend => Self::Frontend,
            ListedComponent::Planner => Self::Planner,
            ListedComponent::Kvbm => Self::Kvbm,
        }
    }
}

/// A status by its name.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "as of domain::instance::Status")]
pub enum ListedStatus {
    Starting,
    #[default]
    Ready,
    Draining,
}

impl From<ListedStatus> for Status {
    fn from(status: ListedStatus) -> Self {
        match status {
            ListedStatus::Starting => Self::Starting,
            ListedStatus::Ready => Self::Ready,
            ListedStatus::Draining => Self::Draining,
        }
    }
}

/// A card as it is written: `file`, or the fields of a ModelCard with paths in place of artifact digests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "as of ModelCard in discovery.proto")]
pub struct ListedCard {
    pub file: Option<PathBuf>,
    pub served_name: String,
    pub aliases: Vec<String>,
    pub model_digest: Option<Spanned<String>>,
    pub tokenizer: Option<PathBuf>,
    pub template: Option<PathBuf>,
    pub context_length: u32,
    pub block_size: u32,
    pub kv_blocks: u32,
    pub vocab_size: u32,
    pub eos_token_ids: Vec<u32>,
    pub roles: Vec<ListedRole>,
    pub transports: Vec<String>,
    pub engine: String,
    pub max_running: u32,
    pub max_waiting: u32,
    pub max_logprobs: u32,
    pub max_batched_tokens: u32,
    pub spec_hash: String,
    pub weight: f32,
    pub capabilities: Vec<String>,
    pub hash_scheme: Option<String>,
    pub dp_rank_start: u32,
    pub dp_rank_count: Option<u32>,
}

/// A role by its name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "as of Role in discovery.proto")]
pub enum ListedRole {
    Aggregated,
    Prefill,
    Decode,
}

impl From<ListedRole> for Role {
    fn from(role: ListedRole) -> Self {
        match role {
            ListedRole::Aggregated => Self::Aggregated,
            ListedRole::Prefill => Self::Prefill,
            ListedRole::Decode => Self::Decode,
        }
    }
}

impl ListedCard {
    /// The card with what it cannot say itself: the model's digest as bytes and the digests of its artifacts (empty without one).
    pub fn into_card(self, model: Vec<u8>, tokenizer: Vec<u8>, template: Vec<u8>) -> ModelCard {
        let roles = if self.roles.is_empty() { vec![ListedRole::Aggregated] } else { self.roles };
        ModelCard {
            served_name: self.served_name,
            aliases: self.aliases,
            model_digest: model.into(),
            tokenizer_digest: tokenizer.into(),
            template_digest: template.into(),
            context_length: self.context_length,
            block_size: self.block_size,
            kv_blocks: self.kv_blocks,
            roles: roles.into_iter().map(|role| Role::from(role).into()).collect(),
            transports: self.transports,
            engine: self.engine,
            limits: Some(Limits {
                max_running: self.max_running,
                max_waiting: self.max_waiting,
                max_logprobs: self.max_logprobs,
                max_batched_tokens: self.max_batched_tokens,
            }),
            spec_hash: self.spec_hash,
            weight: self.weight,
            capabilities: self.capabilities,
            layout: None,
            dp_rank_start: self.dp_rank_start,
            dp_rank_count: self.dp_rank_count.unwrap_or(1),
            hash_scheme: self.hash_scheme.unwrap_or_else(|| armature_kv_hash::HASH_SCHEME.to_owned()),
            vocab_size: self.vocab_size,
            eos_token_ids: self.eos_token_ids,
            step_prior: None,
        }
    }
}

/// Reads a text.
pub fn parse(text: &str) -> Result<Listing, ListingError> {
    toml::from_str(text).map_err(|error| ListingError {
        line: line(text, error.span().map_or(0, |span| span.start)),
        problem: error.message().to_owned(),
    })
}

/// The line (from 1) of a byte offset.
pub fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_broken_text_is_told_its_line() {
        let cases = [
            ("a = 1\n", 1, "unknown field"),
            ("\n[[instance]]\nid = \n", 3, ""),
            ("[[instance]]\nid = \"1\"\ncomponent = \"wrker\"\naddresses = {}\n", 3, "worker"),
            ("[card.a]\nblock_size = -1\n", 2, "u32"),
        ];
        for (text, line, problem) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.problem.contains(problem), "{error}");
        }
    }
}
