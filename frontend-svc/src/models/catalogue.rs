//! Names to sets of equal models, at one moment: what a request looks its model up in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;

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
}

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
