//! Follows discovery's view: fetches cards, tells the state who is a member, and keeps a feed per worker.
//!
//! A worker is a candidate once its card is known. A card that cannot be read disables its workers and nobody else.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1::ModelCard;
use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::Channels;
use armature_svc_kit::discovery_client::{BlobError, Component, Digest, Discovery, Instance, Members, View};
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::backoff::Backoff;
use super::cards;
use super::worker_feed::Feeds;
use crate::domain::worker::Worker;
use crate::ports::Routers;

/// Cards fetched at a time.
const FETCHES: usize = 16;
/// First and longest pause before a card is asked for again.
const FETCH_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The follower of one view.
pub struct Membership {
    discovery: Discovery,
    channels: Channels,
    feeds: Feeds,
    /// Of the digests in the view only. None: it cannot be read.
    cards: HashMap<Digest, Option<Arc<ModelCard>>>,
    fetching: HashMap<Digest, AbortHandle>,
    fetched: JoinSet<(Digest, Option<Arc<ModelCard>>)>,
    fetches: Arc<Semaphore>,
    followed: HashMap<InstanceId, Followed>,
}

struct Followed {
    address: Address,
    _feed: AbortOnDropHandle<()>,
}

impl Membership {
    /// Knows nobody yet.
    pub fn new(discovery: Discovery, channels: Channels, feeds: Feeds) -> Self {
        Self {
            discovery,
            channels,
            feeds,
            cards: HashMap::new(),
            fetching: HashMap::new(),
            fetched: JoinSet::new(),
            fetches: Arc::new(Semaphore::new(FETCHES)),
            followed: HashMap::new(),
        }
    }

    /// Follows the view for ever; the feeds end with this.
    pub async fn run(mut self, members: Members) {
        let mut views = members.subscribe();
        loop {
            let view = views.borrow_and_update().clone();
            self.apply(&view);
            tokio::select! {
                changed = views.changed() => {
                    if changed.is_err() {
                        // The watcher is gone: the last view stands until this is dropped.
                        std::future::pending::<()>().await;
                    }
                }
                Some(joined) = self.fetched.join_next(), if !self.fetched.is_empty() => {
                    // Those no longer wanted were aborted.
                    let Ok((digest, card)) = joined else { continue };
                    self.fetching.remove(&digest);
                    self.cards.insert(digest, card);
                }
            }
        }
    }

    fn apply(&mut self, view: &View) {
        let instances: Vec<_> =
            view.instances.values().filter(|instance| instance.component == Component::Worker).collect();
        let wanted: BTreeSet<_> = instances.iter().filter_map(|instance| instance.card).collect();
        self.fetch(&wanted);

        let mut workers = Vec::new();
        let mut complete = view.seen;
        let mut present = Vec::new();
        for instance in instances {
            match instance.card.and_then(|digest| self.cards.get(&digest)) {
                None => complete &= instance.card.is_none(),
                Some(None) => {}
                Some(Some(card)) => match cards::workers(instance, card) {
                    Ok(ranks) => {
                        workers.extend(ranks.iter().cloned());
                        present.push((instance.clone(), ranks));
                    }
                    Err(error) => tracing::warn!(instance = %instance.id, %error, "worker cannot be used"),
                },
            }
        }
        self.feeds.shared.members(workers);
        // Feeds start after their workers are members, or a first report would be nobody's.
        self.follow(&present);
        self.feeds.shared.membership_complete(complete);
    }

    fn follow(&mut self, present: &[(Arc<Instance>, Vec<Worker>)]) {
        let ids: BTreeSet<_> = present.iter().map(|(instance, _)| instance.id).collect();
        self.followed.retain(|id, _| ids.contains(id));
        for (instance, ranks) in present {
            let (Some(address), Some(first)) = (instance.grpc(), ranks.first()) else { continue };
            if self.followed.get(&instance.id).is_some_and(|followed| followed.address == address) {
                continue;
            }
            let naming = first.tells_blocks().then(|| cards::naming(first));
            let ranks = ranks.iter().map(|worker| worker.rank).collect();
            let feed = self.feeds.clone().follow(self.channels.to(&address), ranks, naming);
            let feed = AbortOnDropHandle::new(tokio::spawn(feed));
            tracing::info!(worker = %instance.id, %address, "following worker");
            self.followed.insert(instance.id, Followed { address, _feed: feed });
        }
    }

    fn fetch(&mut self, wanted: &BTreeSet<Digest>) {
        self.cards.retain(|digest, _| wanted.contains(digest));
        self.fetching.retain(|digest, fetch| {
            let keep = wanted.contains(digest);
            if !keep {
                fetch.abort();
            }
            keep
        });
        for digest in wanted {
            if self.cards.contains_key(digest) || self.fetching.contains_key(digest) {
                continue;
            }
            let fetch = fetch(self.discovery.clone(), *digest, self.fetches.clone());
            self.fetching.insert(*digest, self.fetched.spawn(fetch));
        }
    }
}

/// Asks for a card until there is an answer.
async fn fetch(
    discovery: Discovery,
    digest: Digest,
    fetches: Arc<Semaphore>,
) -> (Digest, Option<Arc<ModelCard>>) {
    let mut backoff = Backoff::new(FETCH_PAUSES.0, FETCH_PAUSES.1);
    loop {
        let answer: Result<_, BlobError> = {
            let _turn = fetches.clone().acquire_owned().await;
            Box::pin(discovery.card(digest)).await
        };
        match answer.map(ModelCard::decode) {
            Ok(Ok(card)) => return (digest, Some(Arc::new(card))),
            Ok(Err(error)) => {
                tracing::warn!(card = %digest, %error, "card cannot be read, its workers are not used");
                return (digest, None);
            }
            Err(error @ BlobError::TooLarge { .. }) => {
                tracing::warn!(card = %digest, %error, "card is refused, its workers are not used");
                return (digest, None);
            }
            Err(error) => {
                tracing::info!(card = %digest, %error, "card cannot be had yet");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// Routers of the view.
pub struct ViewedRouters(pub Members);

impl Routers for ViewedRouters {
    fn address(&self, router: InstanceId) -> Option<Address> {
        let view = self.0.view();
        let instance = view.instances.get(&router)?;
        (instance.component == Component::Router).then(|| instance.grpc()).flatten()
    }
}
