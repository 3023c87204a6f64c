//! What a consumer believes about the instances, and by which rules it changes its mind. Pure: the
//! time is an argument, a duration on the consumer's own monotonic clock.
//!
//! An instance leaves a view
//! - when discovery says it is gone (an equal or higher lease epoch than the one held), or
//! - when a snapshot of the *same* server epoch leaves it out: that server knew it and let it go, or
//! - when it is SUSPECT and this consumer's own probe has failed for [`PROBE_LIMIT`].
//!
//! A snapshot of another server (restarted, another replica, an emptied registry) that leaves an
//! instance out only makes it SUSPECT: doubt keeps an instance. One that left by failed probes and
//! that discovery still lists is hidden, and comes back when a probe succeeds.
//!
//! The members are bounded by what the registry holds, the tombstones by [`MAX_TOMBSTONES`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::InstanceId;

use super::instance::{Instance, Status};

/// How long the own probe of a SUSPECT instance must fail before it is let go.
pub const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// How long an id announced gone is refused: a late message must not bring it back.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(600);
/// Ids remembered as gone; beyond it the oldest is forgotten.
const MAX_TOMBSTONES: usize = 4096;

/// What a consumer works with: every instance that may be alive, with its effective status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Revision of the server's last word.
    pub revision: u64,
    /// The start of the server that spoke it; revisions of different epochs do not compare.
    pub epoch: u64,
    /// True once there is something to work with: a snapshot, or the last good view of a file.
    pub seen: bool,
    /// True while discovery is connected; otherwise the last view stands.
    pub live: bool,
    /// By id. SUSPECT includes this consumer's own doubt.
    pub instances: BTreeMap<InstanceId, Arc<Instance>>,
}

/// One ordered change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// New or changed.
    Put(Instance),
    /// Gone, up to this lease epoch.
    Gone {
        /// Who.
        id: InstanceId,
        /// Yields to a higher one.
        lease_epoch: u64,
    },
    /// Of a newer version than this one.
    Unknown,
}

/// What a delta did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is part of the view.
    Yes,
    /// It does not follow what came before: ask for a snapshot.
    OutOfOrder,
}

/// Why this consumer doubts an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// It said so itself: [`Membership::mark_suspect`].
    Own,
    /// Known from the file only, until probed.
    LastGood,
    /// Left out by a server that need not have known it.
    LeftOut,
}

#[derive(Clone, Debug)]
struct Member {
    reported: Arc<Instance>,
    doubt: Option<Doubt>,
    /// First failure since the last success of the own probe.
    failing_since: Option<Duration>,
    /// Let go by failed probes while discovery still lists it.
    hidden: bool,
}

impl Member {
    fn new(instance: Instance) -> Self {
        Self { reported: Arc::new(instance), doubt: None, failing_since: None, hidden: false }
    }

    fn is_suspect(&self) -> bool {
        self.doubt.is_some() || self.reported.status == Status::Suspect
    }

    /// DRAINING is stronger than SUSPECT: it keeps new work away altogether.
    fn effective(&self) -> Arc<Instance> {
        if !self.is_suspect() || matches!(self.reported.status, Status::Suspect | Status::Draining) {
            return self.reported.clone();
        }
        Arc::new(Instance { status: Status::Suspect, ..(*self.reported).clone() })
    }
}

/// The state behind a [`View`].
#[derive(Clone, Debug, Default)]
pub struct Membership {
    revision: u64,
    epoch: Option<u64>,
    seen: bool,
    live: bool,
    members: BTreeMap<InstanceId, Member>,
    tombstones: Tombstones,
}

impl Membership {
    /// Nothing known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from the last good view of a file; each of it is SUSPECT until probed. Only before
    /// the first word from discovery, else without effect.
    pub fn restore(&mut self, instances: impl IntoIterator<Item = Instance>) {
        if self.seen {
            return;
        }
        for instance in instances {
            let member = Member { doubt: Some(Doubt::LastGood), ..Member::new(instance) };
            self.members.insert(member.reported.id, member);
        }
        self.seen = !self.members.is_empty();
    }

    /// Replaces the state by a server's snapshot, except for doubts of this consumer's own.
    pub fn snapshot(
        &mut self,
        epoch: u64,
        revision: u64,
        instances: impl IntoIterator<Item = Instance>,
        now: Duration,
    ) {
        let same_server = self.epoch == Some(epoch);
        let mut known = std::mem::take(&mut self.members);
        for instance in instances {
            let id = instance.id;
            if self.tombstones.covers(id, instance.lease_epoch, now) {
                continue;
            }
            let member = merge(known.remove(&id), instance);
            let held = self.members.get(&id).map(|held| held.reported.lease_epoch);
            if held.is_none_or(|held| held <= member.reported.lease_epoch) {
                self.members.insert(id, member);
            }
        }
        if !same_server {
            // The rest is doubted, except what is let go already and now listed by nobody.
            let kept = known.into_iter().filter(|(_, member)| !member.hidden);
            let doubted = kept.map(|(id, member)| (id, Member { doubt: Some(Doubt::LeftOut), ..member }));
            self.members.extend(doubted);
        }
        (self.epoch, self.revision, self.seen) = (Some(epoch), revision, true);
    }

    /// Applies one delta of the server whose snapshot came last.
    pub fn delta(&mut self, revision: u64, change: Change, now: Duration) -> Applied {
        if self.epoch.is_none() || revision <= self.revision {
            return Applied::OutOfOrder;
        }
        self.revision = revision;
        match change {
            Change::Put(instance) => self.put(instance, now),
            Change::Gone { id, lease_epoch } => {
                self.tombstones.bury(id, lease_epoch, now);
                if self.members.get(&id).is_some_and(|held| held.reported.lease_epoch <= lease_epoch) {
                    self.members.remove(&id);
                }
            }
            Change::Unknown => {}
        }
        Applied::Yes
    }

    fn put(&mut self, instance: Instance, now: Duration) {
        let (id, lease_epoch) = (instance.id, instance.lease_epoch);
        let stale = self.members.get(&id).is_some_and(|held| held.reported.lease_epoch > lease_epoch);
        if !stale && !self.tombstones.covers(id, lease_epoch, now) {
            let member = merge(self.members.remove(&id), instance);
            self.members.insert(id, member);
        }
    }

    /// This consumer doubts an instance, for instance because its stream broke.
    pub fn mark_suspect(&mut self, id: InstanceId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.doubt.get_or_insert(Doubt::Own);
        }
    }

    /// Whom to probe now: everyone in doubt, the hidden ones too.
    pub fn suspects(&self) -> Vec<Arc<Instance>> {
        let suspects = self.members.values().filter(|member| member.is_suspect() || member.hidden);
        suspects.map(|member| member.reported.clone()).collect()
    }

    /// The result of the own probe of an instance of this lease epoch, finished at `now`.
    pub fn probed(&mut self, id: InstanceId, lease_epoch: u64, alive: bool, now: Duration) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.reported.lease_epoch != lease_epoch || !(member.is_suspect() || member.hidden) {
            return;
        }
        if alive {
            member.failing_since = None;
            member.hidden = false;
            // One that a server left out stays ranked last until a server lists it again.
            member.doubt = member.doubt.filter(|doubt| *doubt == Doubt::LeftOut);
            return;
        }
        let since = *member.failing_since.get_or_insert(now);
        if now.saturating_sub(since) >= PROBE_LIMIT {
            member.hidden = true;
            if member.doubt == Some(Doubt::LeftOut) {
                self.members.remove(&id);
            }
        }
    }

    /// Discovery is connected, or not.
    pub fn set_live(&mut self, live: bool) {
        self.live = live;
    }

    /// From where to resume: (epoch, revision); `None` asks for a snapshot.
    pub fn position(&self) -> Option<(u64, u64)> {
        self.epoch.map(|epoch| (epoch, self.revision))
    }

    /// What is worth keeping for the next start: all that is visible, as reported.
    pub fn last_good(&self) -> Vec<Arc<Instance>> {
        self.visible().map(|member| member.reported.clone()).collect()
    }

    /// The view as of now.
    pub fn view(&self) -> View {
        let instances = self.visible().map(|member| (member.reported.id, member.effective())).collect();
        View {
            revision: self.revision,
            epoch: self.epoch.unwrap_or_default(),
            seen: self.seen,
            live: self.live,
            instances,
        }
    }

    fn visible(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| !member.hidden)
    }
}

/// The member after discovery's word. An own doubt and its failed probes outlive a repetition of
/// the same lease; a new lease is a new sign of life.
fn merge(held: Option<Member>, instance: Instance) -> Member {
    let same_lease = |held: &Member| held.reported.lease_epoch >= instance.lease_epoch;
    match held.filter(same_lease) {
        Some(held) if held.reported.lease_epoch > instance.lease_epoch => {
            // An older word about it: keep the newer one, and it is listed again.
            Member { doubt: held.doubt.filter(|doubt| *doubt == Doubt::Own), ..held }
        }
        Some(held) => {
            let doubt = held.doubt.filter(|doubt| *doubt == Doubt::Own);
            let suspect = doubt.is_some() || held.hidden || instance.status == Status::Suspect;
            let failing_since = held.failing_since.filter(|_| suspect);
            Member { doubt, failing_since, hidden: held.hidden, ..Member::new(instance) }
        }
        None => Member::new(instance),
    }
}

/// Ids that were announced gone, by time.
#[derive(Clone, Debug, Default)]
struct Tombstones {
    epochs: BTreeMap<InstanceId, u64>,
    order: VecDeque<(Duration, InstanceId)>,
}

impl Tombstones {
    fn bury(&mut self, id: InstanceId, lease_epoch: u64, now: Duration) {
        self.forget_before(now.saturating_sub(TOMBSTONE_LIFE), now);
        match self.epochs.get_mut(&id) {
            Some(held) => *held = lease_epoch.max(*held),
            None => {
                self.epochs.insert(id, lease_epoch);
                self.order.push_back((now, id));
            }
        }
        while self.order.len() > MAX_TOMBSTONES {
            self.drop_oldest();
        }
    }

    fn covers(&mut self, id: InstanceId, lease_epoch: u64, now: Duration) -> bool {
        self.forget_before(now.saturating_sub(TOMBSTONE_LIFE), now);
        self.epochs.get(&id).is_some_and(|held| lease_epoch <= *held)
    }

    fn forget_before(&mut self, start: Duration, now: Duration) {
        while now >= TOMBSTONE_LIFE && self.order.front().is_some_and(|(at, _)| *at <= start) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.epochs.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
