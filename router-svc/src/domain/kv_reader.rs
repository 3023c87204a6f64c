//! What a router reads next from the store beside the workers, and which workers it asks directly instead.
//!
//! ```text
//! WAITING --load: pointer, chunks--> FOLLOWED: batch after batch, when notified and at each sweep
//!    |  nothing usable                  |  hole, wrong digest, unreadable, behind the worker's own word, silent, store away
//!    v                                  v
//! WATCHED: WatchKv of the worker, from the batch after the last one known --the store has that place, too--> FOLLOWED
//! ```
//!
//! What is missing in the store is a doubt about the store, not about the set: the rank keeps its set, which is exact as of its mark, and the
//! worker goes on from there. Only what contradicts the set (a count, a digest) makes the rank UNKNOWN.

use std::collections::BTreeMap;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::index::wire::Mark;
use super::units::Time;

/// A batch comes at least every 30 s: silence for so long is a broken publisher.
const SILENCE: Duration = Duration::from_secs(65);
/// How long the store may be away before every worker is asked directly.
const AWAY: Duration = Duration::from_secs(1);

/// Why a worker is asked directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Remedy {
    /// There is no complete snapshot of it in the store.
    NoSnapshot,
    /// Batches are missing.
    Hole,
    /// Its set would not have the worker's count or digest.
    Doubt,
    /// What is there is no batch of this rank.
    Unreadable,
    /// The worker has said a batch that the store still does not have.
    Behind,
    /// Nothing has come for longer than a worker is ever silent.
    Silent,
    /// The store does not answer.
    Away,
}

impl Remedy {
    /// A short name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSnapshot => "no_snapshot",
            Self::Hole => "hole",
            Self::Doubt => "doubt",
            Self::Unreadable => "unreadable",
            Self::Behind => "behind",
            Self::Silent => "silent",
            Self::Away => "away",
        }
    }
}

/// A read of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// The newest snapshot.
    Load(WorkerRank),
    /// Batches after `after`.
    Tail {
        /// Whose.
        rank: WorkerRank,
        /// Last one applied.
        after: u64,
    },
    /// The first batch that is not older than `mark`: whether the store has the place at which the rank is.
    Probe {
        /// Whose.
        rank: WorkerRank,
        /// Where it is.
        mark: Mark,
    },
}

/// What the index and the worker say of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankView {
    /// How far its events are applied; none: UNKNOWN.
    pub mark: Option<Mark>,
    /// Number of the last batch by the worker's own report; 0 when it does not say.
    pub said: u64,
}

/// What to do with batches that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Apply them.
    Apply,
    /// Leave them.
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Loading,
    Followed,
    Watched,
}

#[derive(Debug, Clone, Copy)]
struct Rank {
    phase: Phase,
    /// Tells two memberships of one rank apart.
    token: u64,
    /// There may be something to read.
    due: bool,
    progress: Time,
    /// The worker's last batch as of the two sweeps before, the older first.
    said: [u64; 2],
}

/// The reader of all ranks. As large as the membership.
#[derive(Debug, Default)]
pub struct Reader {
    ranks: BTreeMap<WorkerRank, Rank>,
    /// Since when the store has been away; none while it answers.
    away_since: Option<Time>,
    loading: usize,
    max_loading: usize,
    /// Where the next look for due ranks begins, so that busy ones do not starve others.
    turn: Option<WorkerRank>,
    switches: Vec<(WorkerRank, Option<Remedy>)>,
}

impl Reader {
    /// Without ranks and without a store, which loads at most `max_loading` snapshots at a time.
    pub fn new(max_loading: usize, now: Time) -> Self {
        Self { away_since: Some(now), max_loading: max_loading.max(1), ..Self::default() }
    }

    /// Takes the present ranks, each with a token that changes when it comes back.
    pub fn members(&mut self, present: &BTreeMap<WorkerRank, u64>, now: Time) {
        let loading = &mut self.loading;
        self.ranks.retain(|rank, held| {
            let stays = present.get(rank) == Some(&held.token);
            if !stays && held.phase == Phase::Loading {
                *loading -= 1;
            }
            stays
        });
        for (rank, token) in present {
            self.ranks.entry(*rank).or_insert(Rank {
                phase: Phase::Waiting,
                token: *token,
                due: true,
                progress: now,
                said: [0; 2],
            });
        }
    }

    /// The store answers.
    pub fn store_up(&mut self) {
        if self.away_since.take().is_some() {
            self.ranks.values_mut().for_each(|rank| rank.due = true);
        }
    }

    /// The store does not answer.
    pub fn store_down(&mut self, now: Time) {
        self.away_since.get_or_insert(now);
    }

    /// The store may have a new batch of this rank.
    pub fn notified(&mut self, rank: WorkerRank) {
        if let Some(held) = self.ranks.get_mut(&rank) {
            // A watched rank is looked at by sweeps only.
            held.due |= held.phase != Phase::Watched;
        }
    }

    /// Looks at every rank: called once a second.
    pub fn sweep(&mut self, view: impl Fn(WorkerRank) -> RankView, now: Time) {
        let away = self.away_since.is_some_and(|since| now.since(since) >= AWAY);
        let mut remedies = Vec::new();
        for (rank, held) in &mut self.ranks {
            held.due = true;
            let RankView { mark, said } = view(*rank);
            let known = mark.map_or(0, |mark| mark.batch);
            let behind = known < held.said[0];
            held.said = [held.said[1], said];
            let remedy = match held.phase {
                Phase::Watched => None,
                _ if away => Some(Remedy::Away),
                Phase::Followed if mark.is_none() => Some(Remedy::Doubt),
                Phase::Followed if behind => Some(Remedy::Behind),
                Phase::Followed if now.since(held.progress) >= SILENCE => Some(Remedy::Silent),
                _ => None,
            };
            remedies.extend(remedy.map(|remedy| (*rank, remedy)));
        }
        for (rank, remedy) in remedies {
            self.watch(rank, remedy);
        }
    }

    /// What to read now, at most `most` ranks; those not taken stay due.
    pub fn reads(&mut self, view: impl Fn(WorkerRank) -> RankView, most: usize) -> Vec<Read> {
        let mut reads = Vec::new();
        if self.away_since.is_some() {
            return reads;
        }
        let split = self.turn.take();
        let order: Vec<_> = {
            let due = |(rank, held): (&WorkerRank, &Rank)| held.due.then_some(*rank);
            let (low, high): (Vec<_>, Vec<_>) =
                self.ranks.iter().filter_map(due).partition(|rank| split.is_some_and(|split| *rank < split));
            high.into_iter().chain(low).collect()
        };
        for rank in order {
            if reads.len() >= most {
                self.turn = Some(rank);
                break;
            }
            let Some(held) = self.ranks.get_mut(&rank) else { continue };
            match (held.phase, view(rank).mark) {
                (Phase::Waiting, _) if self.loading < self.max_loading => {
                    held.phase = Phase::Loading;
                    self.loading += 1;
                    reads.push(Read::Load(rank));
                }
                // Its turn comes when another is loaded.
                (Phase::Waiting, _) => continue,
                (Phase::Followed, Some(mark)) => reads.push(Read::Tail { rank, after: mark.batch }),
                (Phase::Watched, Some(mark)) => reads.push(Read::Probe { rank, mark }),
                (Phase::Loading | Phase::Followed | Phase::Watched, _) => {}
            }
            held.due = false;
        }
        reads
    }

    /// A load has ended, with a snapshot or without. Whether it is to be applied.
    pub fn loaded(&mut self, rank: WorkerRank, found: Result<(), Remedy>, now: Time) -> Verdict {
        if !self.load_ended(rank) {
            return Verdict::Ignore;
        }
        match found {
            Ok(()) => {
                if let Some(held) = self.ranks.get_mut(&rank) {
                    (held.phase, held.progress) = (Phase::Followed, now);
                }
                Verdict::Apply
            }
            Err(remedy) => {
                self.watch(rank, remedy);
                Verdict::Ignore
            }
        }
    }

    /// Every load has ended with its connection: they begin again, unless the store stays away.
    pub fn loads_lost(&mut self) {
        for held in self.ranks.values_mut().filter(|held| held.phase == Phase::Loading) {
            (held.phase, held.due) = (Phase::Waiting, true);
        }
        self.loading = 0;
    }

    /// False when nobody waits for it any more.
    fn load_ended(&mut self, rank: WorkerRank) -> bool {
        let Some(held) = self.ranks.get_mut(&rank).filter(|held| held.phase == Phase::Loading) else {
            return false;
        };
        self.loading -= 1;
        (held.phase, held.due) = (Phase::Waiting, true);
        true
    }

    /// Batches `ids` were read after `after`; `more` says that there may be others behind them.
    pub fn tail(&mut self, rank: WorkerRank, after: u64, ids: &[u64], more: bool, now: Time) -> Verdict {
        let Some(held) = self.ranks.get_mut(&rank).filter(|held| held.phase == Phase::Followed) else {
            return Verdict::Ignore;
        };
        let Some(first) = ids.first() else { return Verdict::Ignore };
        let contiguous = *first == after + 1 && ids.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if !contiguous {
            self.watch(rank, Remedy::Hole);
            return Verdict::Ignore;
        }
        held.progress = now;
        held.due |= more;
        Verdict::Apply
    }

    /// What was read could not be applied: `remedy` says why.
    pub fn refused(&mut self, rank: WorkerRank, remedy: Remedy) {
        self.watch(rank, remedy);
    }

    /// The first batch not older than `mark`, where the rank was, was read: its number, and what the set is after it. The store serves again
    /// when it has that very batch or the one after it.
    pub fn probed(&mut self, rank: WorkerRank, mark: Mark, first: Option<Mark>, now: Time) {
        let Some(held) = self.ranks.get_mut(&rank).filter(|held| held.phase == Phase::Watched) else {
            return;
        };
        if first.is_some_and(|first| first == mark || first.batch == mark.batch + 1) {
            (held.phase, held.due, held.progress, held.said) = (Phase::Followed, true, now, [0; 2]);
            self.switches.push((rank, None));
        }
    }

    /// Ranks that begin (with the reason) or cease (none) to be asked directly.
    pub fn switches(&mut self) -> Vec<(WorkerRank, Option<Remedy>)> {
        std::mem::take(&mut self.switches)
    }

    /// Whether there is something to read.
    pub fn is_due(&self) -> bool {
        let readable = |held: &Rank| match held.phase {
            Phase::Waiting => self.loading < self.max_loading,
            Phase::Loading => false,
            Phase::Followed | Phase::Watched => true,
        };
        self.away_since.is_none() && self.ranks.values().any(|held| held.due && readable(held))
    }

    /// How many ranks are asked directly.
    pub fn watched(&self) -> usize {
        self.ranks.values().filter(|held| held.phase == Phase::Watched).count()
    }

    /// Present ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    fn watch(&mut self, rank: WorkerRank, remedy: Remedy) {
        let Some(held) = self.ranks.get_mut(&rank).filter(|held| held.phase != Phase::Watched) else {
            return;
        };
        // The end of a load that goes on is ignored.
        self.loading -= usize::from(held.phase == Phase::Loading);
        (held.phase, held.due) = (Phase::Watched, false);
        self.switches.push((rank, Some(remedy)));
    }
}

#[cfg(test)]
mod tests;
