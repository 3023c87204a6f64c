//! One replica at work: follows its backend, judges leases, renews them, wakes watchers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use armature_svc_kit::drain::Drain;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::domain::instance::{Instance, InstanceId, LeaseEpoch, ReplicaId};
use crate::domain::registry::{LeaseUnknown, Registry, Rules, Verdict};
use crate::domain::store::{Change, RegisterError};
use crate::domain::time::Moment;
use crate::domain::view::{Reading, Revision, Selector, ViewEpoch, Watcher};
use crate::metrics::Metrics;
use crate::ports::Backend;

/// How late a lease may be judged: small against the grace, large against the cost of looking.
const JUDGE_EVERY: Duration = Duration::from_millis(250);

/// What a replica is at its start; the random and the growing numbers are drawn by the composition root.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Random.
    pub replica: ReplicaId,
    /// Random.
    pub epoch: ViewEpoch,
    /// Not smaller than any revision of an earlier life.
    pub first_revision: Revision,
}

/// A [`Registry`] with its backend and its clock.
pub struct Replica {
    id: ReplicaId,
    registry: Mutex<Registry>,
    backend: Arc<dyn Backend>,
    metrics: Metrics,
    renew_every: Duration,
    origin: Instant,
    /// What watchers wait on: the revision, and whether losses are held back.
    wake: watch::Sender<(Revision, bool)>,
}

impl Replica {
    /// A replica that has not looked at its backend yet; [`Replica::run`] makes it.
    pub fn new(identity: Identity, rules: Rules, backend: Arc<dyn Backend>, metrics: Metrics) -> Self {
        let registry = Registry::new(rules, identity.epoch, identity.first_revision, Moment::default());
        Self {
            id: identity.replica,
            registry: Mutex::new(registry),
            backend,
            metrics,
            renew_every: rules.ttl / 3,
            origin: Instant::now(),
            wake: watch::Sender::new((identity.first_revision, true)),
        }
    }

    /// The backend, for what needs no replica: cards, artifacts, statuses, leaders.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The instruments.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Opens or takes over the lease of an instance.
    pub async fn register(&self, instance: Instance) -> Result<LeaseEpoch, RegisterError> {
        let registered = self.backend.register(instance.clone(), self.id).await;
        self.metrics.registered(match &registered {
            Ok(_) => "accepted",
            Err(RegisterError::Fenced(_)) => "fenced",
            Err(RegisterError::CardUnknown(_)) => "card_unknown",
            Err(RegisterError::BlockSizeMismatch { .. }) => "block_size_mismatch",
            Err(RegisterError::Full { .. }) => "full",
            Err(RegisterError::Static(_)) => "static",
            Err(RegisterError::TooLarge { .. }) => "too_large",
            Err(RegisterError::Unreachable) => "unreachable",
        });
        let epoch = registered?;
        let now = self.now();
        self.registry().leased(&instance, epoch, now);
        tracing::info!(instance = %instance.id, component = instance.component.as_str(), epoch = epoch.0, "registered");
        Ok(epoch)
    }

    /// Attaches a heartbeat stream to a lease; dropping the answer detaches it.
    pub fn attach(self: &Arc<Self>, id: InstanceId, epoch: LeaseEpoch) -> Result<Attached, LeaseUnknown> {
        let now = self.now();
        self.registry().attach(id, epoch, now)?;
        Ok(Attached { replica: self.clone(), id, epoch })
    }

    /// A new watcher.
    pub fn watch(&self, selector: Selector, seen: Option<(ViewEpoch, Revision)>) -> Watcher {
        self.registry().watch(selector, seen)
    }

    /// What a watcher has not been told.
    pub fn read(&self, watcher: &mut Watcher) -> Reading {
        let reading = self.registry().read(watcher);
        if reading.resynced {
            self.metrics.resyncs.inc();
        }
        reading
    }

    /// Of this replica's view.
    pub fn view_epoch(&self) -> ViewEpoch {
        self.registry().view().epoch()
    }

    /// Changes whenever a watcher may have something to read.
    pub fn wake(&self) -> watch::Receiver<(Revision, bool)> {
        self.wake.subscribe()
    }

    /// Works until the service begins to drain; `seen` runs once the backend's state is in the view. After it, nobody is judged: that our
    /// own streams end says nothing about the instances behind them.
    pub async fn run(&self, drain: Drain, seen: impl FnOnce()) {
        let mut changes = self.backend.changes();
        let mut seen = Some(seen);
        let mut judge = interval(JUDGE_EVERY);
        let mut renew = interval(self.renew_every);
        judge.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = drain.draining() => return,
                _ = judge.tick() => self.judge().await,
                _ = renew.tick() => self.renew().await,
                Some(change) = changes.next() => {
                    let snapshot = matches!(change, Change::Snapshot { .. });
                    self.apply(change);
                    if let Some(seen) = seen.take_if(|_| snapshot) {
                        seen();
                    }
                }
            }
        }
    }

    fn apply(&self, change: Change) {
        if change == Change::Unreachable {
            tracing::warn!("the backend is unreachable, the view stands");
        }
        let now = self.now();
        self.registry().apply(change, now);
        self.wake_watchers();
    }

    async fn judge(&self) {
        let now = self.now();
        let verdicts = self.registry().judge(now);
        self.wake_watchers();
        for verdict in verdicts {
            let told = match verdict {
                Verdict::Lost(id, epoch) => {
                    tracing::warn!(instance = %id, "lost: its stream broke and did not come back");
                    self.metrics.judged("lost");
                    self.backend.bury(id, epoch).await
                }
                Verdict::Doubted(id, epoch) => {
                    tracing::warn!(instance = %id, "in doubt: silent, or one of too many losses at once");
                    self.metrics.judged("doubted");
                    self.backend.release(id, epoch).await
                }
            };
            if let Err(error) = told {
                // Its lease is not renewed any more, so the backend lets it run out.
                tracing::warn!(?verdict, %error, "verdict not stored");
            }
        }
        let usage = self.backend.usage();
        self.metrics.observe(&self.registry(), usage);
    }

    async fn renew(&self) {
        let leases = self.registry().leases();
        match self.backend.renew(self.id, &leases).await {
            Ok(unknown) => {
                let unknown: Vec<_> = leases.into_iter().filter(|(id, _)| unknown.contains(id)).collect();
                self.registry().disown(&unknown);
            }
            Err(error) => tracing::warn!(%error, leases = leases.len(), "leases not renewed"),
        }
    }

    fn wake_watchers(&self) {
        let registry = self.registry();
        let state = (registry.view().revision(), registry.recovering());
        self.wake.send_if_modified(|seen| std::mem::replace(seen, state) != state);
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A heartbeat stream attached to a lease.
pub struct Attached {
    replica: Arc<Replica>,
    id: InstanceId,
    epoch: LeaseEpoch,
}

impl Attached {
    /// Which lease.
    pub fn lease(&self) -> (InstanceId, LeaseEpoch) {
        (self.id, self.epoch)
    }

    /// Another heartbeat.
    pub fn heartbeat(&self) -> Result<(), LeaseUnknown> {
        let now = self.replica.now();
        self.replica.registry().heartbeat(self.id, self.epoch, now)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let now = self.replica.now();
        self.replica.registry().detach(self.id, self.epoch, now);
    }
}
