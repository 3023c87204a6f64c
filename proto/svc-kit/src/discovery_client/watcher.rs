//! Follows discovery's watch stream, probes whom it doubts, keeps the last good view on disk.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use armature_contracts::discovery::v1 as proto;
use armature_contracts::discovery::v1::view_delta;
use armature_contracts::discovery::v1::watch_response::Event;
use armature_contracts::ids::InstanceId;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::instance::{Component, Instance};
use super::last_good;
use super::membership::{Applied, Change, Membership, View};
use super::probe::{PROBE_TIMEOUT, Probe};
use super::{ANSWER, Client, Discovery, Rounds};
use crate::drain::Drain;

/// How often doubted instances are probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Probes at a time.
const MAX_PROBES: usize = 256;
/// Shortest time between two writes of the last good view.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest life of a stream, at most twice as long: then the next endpoint is asked over a new connection, so that one that was away gets
/// its share again.
const AGE: Duration = Duration::from_secs(600);

/// What to watch.
pub struct WatchOptions {
    /// The deployment.
    pub namespace: String,
    /// Which components; empty for all.
    pub components: Vec<Component>,
    /// Where the last good view is kept; `None` for nowhere.
    pub last_good: Option<PathBuf>,
    /// How to look at a doubted instance, usually [`super::health_probe`].
    pub probe: Probe,
}

/// Reads the view. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Members {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    membership: Mutex<Membership>,
    view: watch::Sender<Arc<View>>,
}

impl State {
    fn change<R>(&self, change: impl FnOnce(&mut Membership) -> R) -> R {
        let mut membership = self.membership.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut membership);
        let view = membership.view();
        // Under the lock, so that views are published in the order in which they came to be.
        self.view.send_if_modified(|shown| {
            let differs = **shown != view;
            if differs {
                *shown = Arc::new(view);
            }
            differs
        });
        result
    }
}

impl Members {
    /// The view as of now.
    pub fn view(&self) -> Arc<View> {
        self.state.view.borrow().clone()
    }

    /// Every change of the view, the latest one only.
    pub fn subscribe(&self) -> watch::Receiver<Arc<View>> {
        self.state.view.subscribe()
    }

    /// Waits for the first view to work with.
    pub async fn seen(&self) {
        // The sender is part of self, so the channel cannot close while this waits.
        let _ = self.subscribe().wait_for(|view| view.seen).await;
    }

    /// This consumer has a reason of its own to doubt an instance. It is SUSPECT from now on, until
    /// a probe succeeds; it leaves the view when probes fail for [`super::PROBE_LIMIT`].
    pub fn mark_suspect(&self, id: InstanceId) {
        self.state.change(|membership| membership.mark_suspect(id));
    }
}

/// Keeps a view current; [`Watcher::run`] does it.
pub struct Watcher {
    discovery: Discovery,
    options: WatchOptions,
    state: Arc<State>,
    start: Instant,
}

impl Discovery {
    /// Watches; the view is empty until the watcher runs.
    pub fn watch(&self, options: WatchOptions) -> (Watcher, Members) {
        let (view, _) = watch::channel(Arc::new(View::default()));
        let state = Arc::new(State { membership: Mutex::default(), view });
        let members = Members { state: state.clone() };
        (Watcher { discovery: self.clone(), options, state, start: Instant::now() }, members)
    }
}

/// Why a stream was left.
enum Left {
    Ended(Option<tonic::Status>),
    /// Nothing is wrong with it; so that watchers spread over endpoints that have come back.
    Aged,
    /// What came does not follow; a snapshot is needed.
    Doubt,
}

impl Watcher {
    /// Keeps the view current until `drain` says stop, then saves it.
    pub async fn run(self, drain: Drain) {
        self.restore().await;
        let saver = async {
            let mut views = self.state.view.subscribe();
            loop {
                self.save().await;
                tokio::time::sleep(SAVE_INTERVAL).await;
                if views.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.follow() => {}
            () = self.probe_suspects() => {}
            () = saver => {}
            () = drain.stopping() => {}
        }
        self.save().await;
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn follow(&self) {
        let mut rounds = Rounds::new(&self.discovery);
        let mut position = None;
        loop {
            let (turn, client) = self.discovery.endpoint();
            let left = Box::pin(self.follow_one(client, position, &mut rounds)).await;
            if !matches!(left, Left::Aged) {
                self.state.change(|membership| membership.set_live(false));
            }
            position = match left {
                Left::Aged => {
                    self.discovery.age(turn);
                    self.state.change(|membership| membership.position())
                }
                Left::Ended(error) => {
                    let error = error.map_or("stream ended".to_owned(), |error| error.to_string());
                    tracing::info!(%error, "discovery watch lost, the last view stands");
                    self.discovery.leave(turn);
                    rounds.failed().await;
                    self.state.change(|membership| membership.position())
                }
                Left::Doubt => {
                    tracing::warn!("discovery watch out of order, asking for a snapshot");
                    rounds.failed().await;
                    None
                }
            };
        }
    }

    async fn follow_one(
        &self,
        mut client: Client,
        position: Option<(u64, u64)>,
        rounds: &mut Rounds,
    ) -> Left {
        let (epoch, from_revision) = position.unwrap_or_default();
        let request = proto::WatchRequest {
            namespace: self.options.namespace.clone(),
            components: self.options.components.iter().map(|it| proto::Component::from(*it).into()).collect(),
            from_revision,
            epoch,
        };
        let mut stream = match timeout(ANSWER, client.watch(request)).await {
            Ok(Ok(stream)) => stream.into_inner(),
            Ok(Err(status)) => return Left::Ended(Some(status)),
            Err(_) => return Left::Ended(None),
        };
        // Resuming is granted silently; without a position there is nothing before the snapshot.
        let mut founded = position.is_some();
        if founded {
            self.state.change(|membership| membership.set_live(true));
        }
        let aged = sleep(AGE.mul_f64(rand::random_range(1.0..=2.0)));
        let mut aged = std::pin::pin!(aged);
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = aged.as_mut() => return Left::Aged,
            };
            let event = match message {
                Ok(Some(message)) => message.event,
                Ok(None) => return Left::Ended(None),
                Err(status) => return Left::Ended(Some(status)),
            };
            rounds.succeeded();
            match event {
                Some(Event::Snapshot(snapshot)) => {
                    let proto::ViewSnapshot { revision, epoch, instances } = snapshot;
                    let instances = instances.into_iter().map(Instance::from);
                    self.state.change(|membership| {
                        membership.snapshot(epoch, revision, instances, self.now());
                        membership.set_live(true);
                    });
                    founded = true;
                }
                Some(Event::Delta(delta)) => {
                    let change = match delta.change {
                        Some(view_delta::Change::Put(instance)) => Change::Put(instance.into()),
                        Some(view_delta::Change::Gone(gone)) => {
                            Change::Gone { id: InstanceId(gone.instance_id), lease_epoch: gone.lease_epoch }
                        }
                        None => Change::Unknown,
                    };
                    let now = self.now();
                    let apply = |membership: &mut Membership| membership.delta(delta.revision, change, now);
                    if !founded || self.state.change(apply) == Applied::OutOfOrder {
                        return Left::Doubt;
                    }
                }
                None => {}
            }
        }
    }

    async fn probe_suspects(&self) {
        let mut ticks = interval(PROBE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let suspects = self.state.change(|membership| membership.suspects());
            let probes = futures_util::stream::iter(suspects).map(|instance| {
                let probe = (self.options.probe)(instance.clone());
                async move {
                    let alive = timeout(PROBE_TIMEOUT, probe).await.unwrap_or(false);
                    (instance, alive)
                }
            });
            let mut results = probes.buffer_unordered(MAX_PROBES).ready_chunks(MAX_PROBES);
            while let Some(results) = results.next().await {
                let now = self.now();
                self.state.change(|membership| {
                    for (instance, alive) in results {
                        membership.probed(instance.id, instance.lease_epoch, alive, now);
                    }
                });
            }
        }
    }

    async fn restore(&self) {
        let Some(path) = self.options.last_good.clone() else { return };
        match tokio::task::spawn_blocking(move || last_good::load(&path)).await {
            Ok(Ok(instances)) => self.state.change(|membership| membership.restore(instances)),
            Ok(Err(error)) => tracing::warn!(%error, "starting without a last good view"),
            Err(error) => tracing::error!(%error, "reading the last good view panicked"),
        }
    }

    async fn save(&self) {
        let Some(path) = self.options.last_good.clone() else { return };
        let (seen, instances) = self.state.change(|it| (it.view().seen, it.last_good()));
        if !seen {
            return;
        }
        match tokio::task::spawn_blocking(move || last_good::store(&path, &instances)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last good view is not kept"),
            Err(error) => tracing::error!(%error, "writing the last good view panicked"),
        }
    }
}
