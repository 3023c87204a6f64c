//! How long a prefix each worker has.
//!
//! Along a chain holders only get fewer: who has a block has what comes before it. So the depths at which they change are searched for, in
//! all open intervals at once, a round of [`FAN`] parts each, with the cache lines of a round asked for before the first is read. About
//! `FAN * log_FAN(blocks)` looks per change, in `log_FAN(blocks)` rounds.
//!
//! Where two depths have equal holders nothing between them is looked at, so a hole there is passed over. A worker's depth is the first
//! depth looked at that it does not have, behind one that it has: never less than its first hole.

use crate::bucket;
use crate::epochs::Pin;
use crate::holders::{Holders, Slot};
use crate::index::Index;
use crate::mix::Place;
use crate::sets::Members;
use crate::workers::Worker;

/// Parts into which a round cuts an interval.
const FAN: usize = 8;
/// Looks whose cache lines are asked for together.
const TOGETHER: usize = 32;

/// Buffers of a search, to be used again.
#[derive(Default)]
pub struct Search {
    points: Vec<Point>,
    next: Vec<Point>,
    alive: Vec<Slot>,
    found: Vec<(Worker, u32)>,
}

/// A depth that was looked at, or is about to be.
#[derive(Clone, Copy)]
struct Point {
    depth: u32,
    shard: u32,
    holders: Holders,
    /// Equal for equal holders.
    same: u64,
}

const UNSEEN: u64 = u64::MAX;
const NOBODY: u64 = 0;

impl Index {
    /// Blocks from the first of `prompt` on that each worker has, without a gap as far as was looked; workers without the first are left
    /// out. Wait-free. A match is never shorter than the worker's own prefix was at some instant of the call.
    pub fn find<'s>(&self, prompt: &[u64], search: &'s mut Search) -> &'s [(Worker, u32)] {
        let Search { points, next, alive, found } = search;
        found.clear();
        let Some(last) = prompt.len().checked_sub(1) else { return found };
        let pin = self.epochs.pin();
        points.clear();
        points.extend(
            (0..=FAN.min(last)).map(|part| Point::unseen((last * part / FAN.min(last).max(1)) as u32)),
        );
        self.look(prompt, points, &pin);
        if points[0].same == NOBODY {
            return found;
        }
        while cut(points, next) {
            self.look(prompt, next, &pin);
            std::mem::swap(points, next);
        }
        self.lengths(prompt.len() as u32, points, alive, found, &pin);
        found
    }

    /// Blocks from the first of `prompt` on that one worker has, each of them looked at. Wait-free.
    pub fn depth(&self, worker: Worker, prompt: &[u64]) -> u32 {
        if !self.workers.lives(worker) {
            return 0;
        }
        let pin = self.epochs.pin();
        let mut seen = [Point::unseen(0); TOGETHER];
        let mut holding = UNSEEN;
        for (batch, hashes) in prompt.chunks(TOGETHER).enumerate() {
            let from = (batch * TOGETHER) as u32;
            let points = &mut seen[..hashes.len()];
            for (point, depth) in points.iter_mut().zip(from..) {
                *point = Point::unseen(depth);
            }
            self.look(prompt, points, &pin);
            for point in points {
                if point.same == holding {
                    continue;
                }
                if !self.members(*point, &pin).any(|slot| slot == worker.slot()) {
                    return point.depth;
                }
                holding = point.same;
            }
        }
        prompt.len() as u32
    }

    /// Looks at the points that have not been seen.
    fn look(&self, prompt: &[u64], points: &mut [Point], pin: &Pin<'_>) {
        let mut places = [Place::default(); TOGETHER];
        for points in points.chunks_mut(TOGETHER) {
            for (place, point) in places.iter_mut().zip(points.iter()) {
                if point.same == UNSEEN {
                    *place = self.mixer.place(prompt[point.depth as usize]);
                    self.prefetch(*place, pin);
                }
            }
            for (place, point) in places.iter().zip(points) {
                if point.same == UNSEEN {
                    self.look_at(*place, point, pin);
                    if point.depth == 0 && point.same == NOBODY {
                        return;
                    }
                }
            }
        }
    }

    fn look_at(&self, place: Place, point: &mut Point, pin: &Pin<'_>) {
        let found = bucket::find(self.table(place, pin), place.tag);
        point.holders = found.map_or(Holders::NOBODY, |(_, word)| word.holders());
        point.shard = self.shard_of(place) as u32;
        point.same = match (point.holders.as_one(), point.holders.as_set()) {
            (Some(_), _) => 1 << 63 | u64::from(point.holders.0),
            (None, Some(_)) => self.set(*point, pin).hash(),
            (None, None) => NOBODY,
        };
    }

    fn set<'p>(&'p self, point: Point, pin: &'p Pin<'_>) -> Members<'p> {
        self.shards[point.shard as usize].sets.read(point.holders.as_set().unwrap_or_default(), pin)
    }

    /// Slots of a point's holders, in order.
    fn members<'p>(&'p self, point: Point, pin: &'p Pin<'_>) -> impl Iterator<Item = Slot> + 'p {
        let one = point.holders.as_one();
        let set = point.holders.as_set().map(|_| self.set(point, pin));
        one.into_iter().chain(set.into_iter().flat_map(Members::iter)).map(|member| member.slot())
    }

    /// What the points say of each worker.
    fn lengths(
        &self,
        blocks: u32,
        points: &[Point],
        alive: &mut Vec<Slot>,
        found: &mut Vec<(Worker, u32)>,
        pin: &Pin<'_>,
    ) {
        let Some((first, rest)) = points.split_first() else { return };
        alive.clear();
        alive.extend(self.members(*first, pin));
        let mut present = first.same;
        let mut ends = |slot, depth| found.extend(self.workers.live(slot).map(|worker| (worker, depth)));
        for point in rest {
            if point.same == present {
                continue;
            }
            present = point.same;
            // Both are in order: one walk over the holders serves everybody who is still alive.
            let mut holders = self.members(*point, pin).peekable();
            alive.retain(|slot| {
                while holders.next_if(|holder| holder < slot).is_some() {}
                let holds = holders.peek() == Some(slot);
                if !holds {
                    ends(*slot, point.depth);
                }
                holds
            });
            if alive.is_empty() {
                return;
            }
        }
        alive.iter().for_each(|slot| ends(*slot, blocks));
    }
}

impl Point {
    fn unseen(depth: u32) -> Self {
        Self { depth, shard: 0, holders: Holders::NOBODY, same: UNSEEN }
    }
}

/// Cuts the open intervals between points: neighbours with unequal holders that are not adjacent. False when there is none.
fn cut(points: &[Point], next: &mut Vec<Point>) -> bool {
    next.clear();
    let mut open = false;
    for (at, point) in points.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| points[at].same);
        let Some(after) = points.get(at + 1) else {
            next.push(*point);
            break;
        };
        if before == Some(point.same) && after.same == point.same {
            continue;
        }
        next.push(*point);
        let gap = (after.depth - point.depth) as usize;
        if point.same == after.same || gap < 2 {
            continue;
        }
        open = true;
        let parts = FAN.min(gap);
        next.extend((1..parts).map(|part| Point::unseen(point.depth + (gap * part / parts) as u32)));
    }
    open
}
