//! Reads a model card as far as the registry needs it.

use armature_contracts::MAX_CARD_BYTES;
use armature_contracts::discovery::v1::{ModelCard, Role};
use prost::Message as _;

use crate::domain::instance::{BlockSize, CardFacts, Digest, KvIdentity};

/// Longest model digest: room for any common hash.
const MAX_MODEL_DIGEST_BYTES: usize = 64;

/// What is wrong with a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Too large.
    #[error("the card has {0} bytes, more than {MAX_CARD_BYTES}")]
    TooLarge(usize),
    /// Not what its digest says.
    #[error("the card's BLAKE3-256 is {0}, not the digest it was sent with")]
    Digest(Digest),
    /// No ModelCard.
    #[error("the bytes are no ModelCard: {0}")]
    Malformed(String),
    /// A field makes no sense.
    #[error("the card's {field} {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Verifies and reads the bytes of a card. Takes up to milliseconds for a large one: keep it off the runtime's threads.
pub fn read(digest: Digest, content: &[u8]) -> Result<CardFacts, CardError> {
    if content.len() > MAX_CARD_BYTES {
        return Err(CardError::TooLarge(content.len()));
    }
    let actual = Digest::of(content);
    if actual != digest {
        return Err(CardError::Digest(actual));
    }
    let card = ModelCard::decode(content).map_err(|error| CardError::Malformed(error.to_string()))?;
    let wrong = |field, problem| Err(CardError::Field { field, problem });
    if card.served_name.is_empty() {
        return wrong("served_name", "is empty");
    }
    if card.model_digest.is_empty() || card.model_digest.len() > MAX_MODEL_DIGEST_BYTES {
        return wrong("model_digest", "does not have 1 to 64 bytes");
    }
    if card.block_size == 0 {
        return wrong("block_size", "is 0");
    }
    if !card.weight.is_finite() || card.weight < 0.0 {
        return wrong("weight", "is negative or not a number");
    }
    let mut artifacts = Vec::new();
    for (field, digest) in
        [("tokenizer_digest", &card.tokenizer_digest), ("template_digest", &card.template_digest)]
    {
        if digest.is_empty() {
            continue;
        }
        let Ok(digest) = Digest::try_from(digest.as_ref()) else {
            return wrong(field, "does not have 32 bytes");
        };
        artifacts.push(digest);
    }
    Ok(CardFacts {
        digest,
        kv_identity: KvIdentity(card.model_digest.to_vec()),
        block_size: BlockSize(card.block_size),
        artifacts,
        tags: tags(&card),
    })
}

fn tags(card: &ModelCard) -> Vec<String> {
    let role = |role| match role {
        Role::Unspecified => None,
        Role::Aggregated => Some("role-aggregated".to_owned()),
        Role::Prefill => Some("role-prefill".to_owned()),
        Role::Decode => Some("role-decode".to_owned()),
    };
    std::iter::once(format!("model-{}", card.served_name)).chain(card.roles().filter_map(role)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn card() -> ModelCard {
        ModelCard {
            served_name: "tiny".into(),
            model_digest: vec![1; 32].into(),
            tokenizer_digest: vec![2; 32].into(),
            block_size: 16,
            roles: vec![Role::Decode.into()],
            ..ModelCard::default()
        }
    }

    fn read_card(card: &ModelCard) -> Result<CardFacts, CardError> {
        let bytes = card.encode_to_vec();
        read(Digest::of(&bytes), &bytes)
    }

    #[test]
    fn a_good_card_yields_its_facts() {
        let facts = read_card(&card()).unwrap();
        assert_eq!(facts.block_size, BlockSize(16));
        assert_eq!(facts.artifacts, [Digest([2; 32])]);
        assert_eq!(facts.tags, ["model-tiny", "role-decode"]);
    }

    #[test]
    fn each_wrong_field_is_named() {
        let wrong: [(ModelCard, &str); 5] = [
            (ModelCard { served_name: String::new(), ..card() }, "served_name"),
            (ModelCard { model_digest: vec![].into(), ..card() }, "model_digest"),
            (ModelCard { block_size: 0, ..card() }, "block_size"),
            (ModelCard { weight: f32::NAN, ..card() }, "weight"),
            (ModelCard { template_digest: vec![1].into(), ..card() }, "template_digest"),
        ];
        for (card, field) in wrong {
            let error = read_card(&card).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn other_bytes_than_the_digest_says_are_refused() {
        let bytes = card().encode_to_vec();
        assert_eq!(read(Digest([0; 32]), &bytes), Err(CardError::Digest(Digest::of(&bytes))));
        let garbage = b"\xff\xff\xff";
        assert!(matches!(read(Digest::of(garbage), garbage), Err(CardError::Malformed(_))));
        let huge = vec![0; MAX_CARD_BYTES + 1];
        assert_eq!(read(Digest::of(&huge), &huge), Err(CardError::TooLarge(huge.len())));
    }
}
