//! What the frontend reads from a model card.

use armature_contracts::discovery::v1 as wire;
use prost::Message as _;

use crate::domain::digest::Digest;

/// Which models may replace each other: a request and its migrations stay inside one set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetKey {
    /// Of the weights: the kv_identity.
    pub model: Digest,
    /// Of the tokenizer artifact.
    pub tokenizer: Digest,
    /// Of the template artifact.
    pub template: Digest,
}

/// A card, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// Served name, then aliases.
    pub names: Vec<String>,
    /// The set it belongs to.
    pub set: SetKey,
    /// Tokens of prompt and answer together.
    pub context_length: u32,
    /// Tokens per KV block, not 0.
    pub block_size: u32,
    /// Token ids are below it; 0 when the card does not say.
    pub vocabulary: u32,
    /// Most alternatives per token; `None` when the card does not say.
    pub max_logprobs: Option<u32>,
    /// End tokens.
    pub end_tokens: Vec<u32>,
    /// Whether it answers Generate: prefill workers do not.
    pub decodes: bool,
    /// Equal keys generate the same tokens.
    pub compat_key: Digest,
    /// Share of load; above 0.
    pub weight: f32,
}

/// A card that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// Its bytes are not those that its digest names.
    #[error("card {wanted} has the digest {got}")]
    Digest {
        /// The digest asked for.
        wanted: Digest,
        /// That of the bytes.
        got: Digest,
    },
    /// No protobuf message.
    #[error("card: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A field without which nothing can be served.
    #[error("card: {0} is missing")]
    Missing(&'static str),
    /// Another way to hash blocks than ours.
    #[error("card: hash scheme {0:?} is not known here")]
    HashScheme(String),
}

impl Card {
    /// Reads the bytes of a card that is named by `digest`.
    pub fn parse(digest: &Digest, bytes: &[u8]) -> Result<Self, CardError> {
        let got = Digest::of(bytes);
        if got != *digest {
            return Err(CardError::Digest { wanted: digest.clone(), got });
        }
        let card = wire::ModelCard::decode(bytes)?;
        if !card.hash_scheme.is_empty() && card.hash_scheme != armature_kv_hash::HASH_SCHEME {
            return Err(CardError::HashScheme(card.hash_scheme));
        }
        let required = [
            (card.served_name.is_empty(), "served_name"),
            (card.model_digest.is_empty(), "model_digest"),
            (card.tokenizer_digest.is_empty(), "tokenizer_digest"),
            (card.context_length == 0, "context_length"),
            (card.block_size == 0, "block_size"),
        ];
        if let Some((_, name)) = required.iter().find(|(missing, _)| *missing) {
            return Err(CardError::Missing(name));
        }
        let decodes = card.roles.is_empty()
            || card.roles().any(|role| matches!(role, wire::Role::Aggregated | wire::Role::Decode));
        let mut names = vec![card.served_name];
        names.extend(card.aliases.into_iter().filter(|name| !name.is_empty()));
        Ok(Self {
            names,
            set: SetKey {
                model: card.model_digest.into(),
                tokenizer: card.tokenizer_digest.into(),
                template: card.template_digest.into(),
            },
            context_length: card.context_length,
            block_size: card.block_size,
            vocabulary: card.vocab_size,
            max_logprobs: card.limits.as_ref().map(|it| it.max_logprobs).filter(|max| *max > 0),
            end_tokens: card.eos_token_ids,
            decodes,
            compat_key: card.layout.map(|it| it.compat_key.into()).unwrap_or_default(),
            weight: if card.weight > 0.0 { card.weight } else { 1.0 },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn wire_card() -> wire::ModelCard {
        wire::ModelCard {
            served_name: "m".into(),
            model_digest: vec![1].into(),
            tokenizer_digest: vec![2].into(),
            context_length: 512,
            block_size: 16,
            ..Default::default()
        }
    }

    fn parse(card: &wire::ModelCard) -> Result<Card, CardError> {
        let bytes = card.encode_to_vec();
        Card::parse(&Digest::of(&bytes), &bytes)
    }

    #[test]
    fn a_card_is_verified_and_what_it_lacks_is_named() {
        assert!(parse(&wire_card()).unwrap().decodes);
        let bytes = wire_card().encode_to_vec();
        assert!(matches!(Card::parse(&Digest::default(), &bytes), Err(CardError::Digest { .. })));
        let missing = parse(&wire::ModelCard { block_size: 0, ..wire_card() }).unwrap_err();
        assert_eq!(missing.to_string(), "card: block_size is missing");
        assert!(parse(&wire::ModelCard { hash_scheme: "other".into(), ..wire_card() }).is_err());
    }

    #[test]
    fn a_prefill_worker_does_not_answer_generate() {
        let card = wire::ModelCard { roles: vec![wire::Role::Prefill.into()], ..wire_card() };
        assert!(!parse(&card).unwrap().decodes);
    }
}
