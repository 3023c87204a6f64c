//! Names to sets of equal models, at one moment: what a request looks its model up in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;
use tokio::time::Instant;

use super::card::{Card, SetKey};
use super::template::ChatTemplate;
use super::tokenizer::ModelTokenizer;
use crate::domain::digest::Digest;
use crate::domain::member::{Kind, Members, Status};

/// Something that is fetched by digest.
#[derive(Debug)]
pub enum Loaded<T> {
    /// On its way.
    Loading,
    /// Verified and parsed.
    Ready(Arc<T>),
    /// Will not become usable; why.
    Broken(Arc<str>),
}

impl<T> Clone for Loaded<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Loading => Self::Loading,
            Self::Ready(it) => Self::Ready(it.clone()),
            Self::Broken(why) => Self::Broken(why.clone()),
        }
    }
}

/// What is known by digest.
#[derive(Debug, Default)]
pub struct Shelf {
    /// Cards.
    pub cards: HashMap<Digest, Loaded<Card>>,
    /// Tokenizers.
    pub tokenizers: HashMap<Digest, Loaded<ModelTokenizer>>,
    /// Templates.
    pub templates: HashMap<Digest, Loaded<ChatTemplate>>,
}

/// Models that are interchangeable.
#[derive(Debug, Clone)]
pub struct ServedSet {
    /// Their digests.
    pub key: SetKey,
    /// Served name of the first card.
    pub name: String,
    /// The shortest of the instances'.
    pub context_length: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Token ids are below it.
    pub vocabulary: u32,
    /// Most alternatives per token.
    pub max_logprobs: u32,
    /// End tokens of the model.
    pub end_tokens: Vec<u32>,
    /// Sum of the weights of instances that can decode.
    pub weight: f32,
    /// Text to tokens and back.
    pub tokenizer: Arc<ModelTokenizer>,
    /// Conversation to text.
    pub template: Arc<ChatTemplate>,
}

/// The models of one moment.
#[derive(Debug, Default, Clone)]
pub struct Catalogue {
    sets: BTreeMap<String, Vec<Arc<ServedSet>>>,
    troubles: BTreeMap<String, Arc<str>>,
    compat_keys: HashMap<InstanceId, Digest>,
    workers: HashSet<InstanceId>,
    routed: bool,
    /// Names that were served and are not now, and since when; at most [`LOST`].
    lost: HashMap<String, Instant>,
}

/// Names remembered as lost; beyond it the one lost for longest is forgotten.
const LOST: usize = 1024;

impl Catalogue {
    /// The catalogue of `members`, as far as `shelf` knows their artifacts.
    pub fn new(members: &Members, shelf: &Shelf) -> Self {
        let mut catalogue = Self {
            routed: members.values().any(|it| it.kind == Kind::Router && it.status != Status::Draining),
            ..Self::default()
        };
        let mut sets: BTreeMap<SetKey, (ServedSet, Vec<String>)> = BTreeMap::new();
        for member in members.values().filter(|it| it.kind == Kind::Worker) {
            catalogue.workers.insert(member.id);
            let Some(Loaded::Ready(card)) = shelf.cards.get(&member.card) else { continue };
            catalogue.compat_keys.insert(member.id, card.compat_key.clone());
            if !card.decodes || !matches!(member.status, Status::Ready | Status::Suspect) {
                continue;
            }
            match serve(card, shelf) {
                Ok(set) => {
                    let (known, names) = sets.entry(card.set.clone()).or_insert_with(|| (set, Vec::new()));
                    known.context_length = known.context_length.min(card.context_length);
                    known.weight += card.weight;
                    names.extend(
                        card.names.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>(),
                    );
                }
                Err(why) => {
                    for name in &card.names {
                        catalogue.troubles.insert(name.clone(), why.clone());
                    }
                }
            }
        }
        for (set, names) in sets.into_values() {
            let set = Arc::new(set);
            for name in names {
                catalogue.sets.entry(name).or_default().push(set.clone());
            }
        }
        catalogue
    }

    /// The same as the successor of `before` at `now`: it knows what is no longer served.
    #[must_use]
    pub fn after(mut self, before: &Self, now: Instant) -> Self {
        let gone = before.sets.keys().map(|name| (name.clone(), now));
        let lost = before.lost.iter().map(|(name, since)| (name.clone(), *since)).chain(gone);
        self.lost = lost.filter(|(name, _)| !self.sets.contains_key(name)).collect();
        while self.lost.len() > LOST {
            let oldest = self.lost.iter().min_by_key(|(_, since)| **since).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.lost.remove(&name));
        }
        self
    }

    /// Since when `model` is no longer served, if it ever was.
    pub fn lost(&self, model: &str) -> Option<Instant> {
        self.lost.get(model).copied()
    }

    /// Names that can be used now, each once, with one of its sets.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Arc<ServedSet>)> {
        let sets = self.sets.iter().filter(|_| self.routed);
        sets.filter_map(|(name, sets)| Some((name.as_str(), sets.first()?)))
    }

    /// Whether a request could be routed now.
    pub fn routable(&self) -> bool {
        self.routed && !self.sets.is_empty()
    }

    /// The set for a request that names `model`. One name with several sets (a change of the weights, say) shares its requests by weight:
    /// `draw` in [0, 1) decides.
    pub fn find(&self, model: &str, draw: f32) -> Result<Arc<ServedSet>, Fault> {
        if let Some(sets) = self.sets.get(model) {
            let total: f32 = sets.iter().map(|set| set.weight).sum();
            let mut left = draw * total;
            let chosen = sets.iter().find(|set| {
                left -= set.weight;
                left < 0.0
            });
            if let Some(set) = chosen.or(sets.last()) {
                return Ok(set.clone());
            }
        }
        if let Some(why) = self.troubles.get(model) {
            return Err(Fault::new(
                Reason::NoWorkers,
                format!("the model `{model}` cannot be served now: {why}"),
            ));
        }
        let message = format!("the model `{model}` does not exist: GET /v1/models lists those that do");
        Err(Fault::new(Reason::ModelNotFound, message).resource("model", model))
    }

    /// The compatibility key of an instance, if it is known.
    pub fn compat_key(&self, instance: InstanceId) -> Option<&Digest> {
        self.compat_keys.get(&instance)
    }

    /// Whether the worker is in the view, in any state.
    pub fn knows(&self, worker: InstanceId) -> bool {
        self.workers.contains(&worker)
    }

    /// Names that cannot be served, and why.
    pub fn troubles(&self) -> &BTreeMap<String, Arc<str>> {
        &self.troubles
    }
}

fn serve(card: &Card, shelf: &Shelf) -> Result<ServedSet, Arc<str>> {
    let tokenizer = ready(shelf.tokenizers.get(&card.set.tokenizer), "tokenizer")?;
    let template = ready(shelf.templates.get(&card.set.template), "template")?;
    let known = u32::try_from(tokenizer.vocabulary()).unwrap_or(u32::MAX);
    Ok(ServedSet {
        key: card.set.clone(),
        name: card.names.first().cloned().unwrap_or_default(),
        context_length: card.context_length,
        block_size: card.block_size,
        vocabulary: if card.vocabulary == 0 { known } else { card.vocabulary },
        max_logprobs: card.max_logprobs.unwrap_or(crate::domain::params::MAX_ALTERNATIVES),
        end_tokens: card.end_tokens.clone(),
        weight: 0.0,
        tokenizer,
        template,
    })
}

fn ready<T>(loaded: Option<&Loaded<T>>, what: &str) -> Result<Arc<T>, Arc<str>> {
    match loaded {
        Some(Loaded::Ready(it)) => Ok(it.clone()),
        Some(Loaded::Broken(why)) => Err(why.clone()),
        Some(Loaded::Loading) | None => Err(format!("its {what} is being loaded").into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::member::Member;

    const VOCABULARY: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;

    fn digest(byte: u8) -> Digest {
        Digest(vec![byte].into())
    }

    fn card(byte: u8, weight: f32) -> Card {
        Card {
            names: vec!["m".into(), format!("m-{byte}")],
            set: SetKey { model: digest(byte), tokenizer: digest(1), template: digest(2) },
            context_length: 100 + u32::from(byte),
            block_size: 16,
            vocabulary: 0,
            max_logprobs: None,
            end_tokens: Vec::new(),
            decodes: true,
            compat_key: digest(byte),
            weight,
        }
    }

    fn shelf(cards: Vec<Card>) -> Shelf {
        let mut shelf = Shelf::default();
        for (i, card) in (10..).zip(cards) {
            shelf.cards.insert(digest(i), Loaded::Ready(Arc::new(card)));
        }
        let tokenizer = ModelTokenizer::parse(VOCABULARY.as_bytes()).unwrap();
        shelf.tokenizers.insert(digest(1), Loaded::Ready(Arc::new(tokenizer)));
        shelf.templates.insert(digest(2), Loaded::Ready(Arc::new(ChatTemplate::parse(b"{}").unwrap())));
        shelf
    }

    fn members(workers: &[(u64, u8, Status)]) -> Members {
        let member = |id: u64, kind, status, card| Member {
            id: InstanceId(id),
            kind,
            status,
            address: String::new(),
            http: None,
            card,
        };
        let mut members: Members = workers
            .iter()
            .map(|(id, card, status)| (InstanceId(*id), member(*id, Kind::Worker, *status, digest(*card))))
            .collect();
        members.insert(InstanceId(99), member(99, Kind::Router, Status::Ready, Digest::default()));
        members
    }

    #[test]
    fn a_name_is_lost_from_the_moment_it_is_not_served_until_it_is_again() {
        let shelf = shelf(vec![card(7, 1.0)]);
        let (ready, gone) = (members(&[(1, 10, Status::Ready)]), members(&[(1, 10, Status::Draining)]));
        let start = Instant::now();
        let at = |seconds| start + std::time::Duration::from_secs(seconds);
        let served = Catalogue::new(&ready, &shelf).after(&Catalogue::default(), at(0));
        assert_eq!(served.lost("m"), None);
        let without = Catalogue::new(&gone, &shelf).after(&served, at(1));
        assert_eq!(without.lost("m"), Some(at(1)));
        let still = Catalogue::new(&gone, &shelf).after(&without, at(2));
        assert_eq!(
            (still.lost("m"), still.lost("m-7"), still.lost("other")),
            (Some(at(1)), Some(at(1)), None)
        );
        let back = Catalogue::new(&ready, &shelf).after(&still, at(3));
        assert_eq!(back.lost("m"), None);
    }

    #[test]
    fn a_name_with_two_sets_is_listed_once_and_shared_by_weight() {
        let shelf = shelf(vec![card(7, 1.0), card(8, 3.0)]);
        let catalogue = Catalogue::new(&members(&[(1, 10, Status::Ready), (2, 11, Status::Ready)]), &shelf);
        assert_eq!(catalogue.names().map(|(name, _)| name).collect::<Vec<_>>(), ["m", "m-7", "m-8"]);
        let chosen = |draw| catalogue.find("m", draw).unwrap().key.model.clone();
        assert_eq!(chosen(0.0), digest(7));
        assert_eq!(chosen(0.24), digest(7));
        assert_eq!(chosen(0.26), digest(8));
        assert_eq!(chosen(0.999_999), digest(8));
        assert_eq!(catalogue.find("m-8", 0.0).unwrap().context_length, 108);
    }

    #[test]
    fn only_what_can_decode_now_is_there() {
        let shelf = shelf(vec![card(7, 1.0), Card { decodes: false, ..card(8, 1.0) }]);
        let found =
            |workers: &[(u64, u8, Status)]| Catalogue::new(&members(workers), &shelf).find("m", 0.0).is_ok();
        assert!(found(&[(1, 10, Status::Suspect)]));
        assert!(!found(&[(1, 10, Status::Draining)]));
        assert!(!found(&[(1, 10, Status::Starting)]));
        assert!(!found(&[(1, 11, Status::Ready)]));
        let draining = Catalogue::new(&members(&[(1, 10, Status::Draining)]), &shelf);
        assert!(draining.knows(InstanceId(1)) && !draining.knows(InstanceId(2)));
        assert_eq!(draining.compat_key(InstanceId(1)), Some(&digest(7)));
    }

    #[test]
    fn a_model_whose_artifact_is_missing_says_why() {
        let mut shelf = shelf(vec![card(7, 1.0)]);
        let members = members(&[(1, 10, Status::Ready)]);
        for (loaded, word) in [(Some(Loaded::Broken("it is torn".into())), "torn"), (None, "being loaded")] {
            shelf.tokenizers.remove(&digest(1));
            shelf.tokenizers.extend(loaded.map(|it| (digest(1), it)));
            let catalogue = Catalogue::new(&members, &shelf);
            let fault = catalogue.find("m", 0.0).unwrap_err();
            assert_eq!(fault.reason, Reason::NoWorkers);
            assert!(fault.message.contains(word), "{fault}");
            assert!(!catalogue.routable());
        }
    }
}
