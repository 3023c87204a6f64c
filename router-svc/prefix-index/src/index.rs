//! The index: shards with a writer each, and what they share.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bucket::Bucket;
use crate::budget::Budget;
use crate::epochs::{Epochs, Pin};
use crate::mix::{Mixer, Place};
use crate::options::{Options, TooSmall};
use crate::published::{Published, prefetch};
use crate::sets::Sets;
use crate::shard::{Ground, Held, Writer};
use crate::workers::{Worker, Workers};

/// Sums over an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// (block, tier, worker) held.
    pub pairs: u64,
    /// Of those, let go of since the start.
    pub forgotten: u64,
    /// Bytes in use or not yet freed.
    pub bytes: usize,
}

/// Which workers have which prefix. Reads and writes take `&self`; see the crate's page.
pub struct Index {
    pub(crate) mixer: Mixer,
    pub(crate) epochs: Epochs,
    pub(crate) tables: Box<[Published<Bucket>]>,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) workers: Workers,
    /// Tables per shard, as a power of two.
    shard_bits: u32,
    budget: Budget,
    pub(crate) forgetting: Mutex<()>,
    /// Whether anything was ever forgotten.
    pub(crate) forgot: AtomicBool,
    /// Whether a writer has as much to free as makes a look at the readers worth its while.
    pub(crate) litter: AtomicBool,
    pub(crate) digest: fn(u64, u8) -> u64,
}

pub(crate) struct Shard {
    pub(crate) sets: Sets,
    writer: Mutex<Writer>,
}

impl Index {
    /// An empty index.
    pub fn new(options: Options) -> Result<Self, TooSmall> {
        let Options { shards, max_workers, .. } = options.rounded();
        let (segments, bits) = options.segments();
        let least = options.least();
        if least > options.max_bytes {
            return Err(TooSmall { least });
        }
        let shard = |_| Shard {
            sets: Sets::new(),
            writer: Mutex::new(Writer::new(segments / shards, max_workers, options.keys[2])),
        };
        Ok(Self {
            mixer: Mixer::new([options.keys[0], options.keys[1]], bits),
            epochs: Epochs::new(),
            tables: (0..segments).map(|_| Published::empty()).collect(),
            shards: (0..shards).map(shard).collect(),
            workers: Workers::new(max_workers),
            shard_bits: (segments / shards).ilog2(),
            budget: Budget::new(options.max_bytes, least),
            forgetting: Mutex::new(()),
            forgot: AtomicBool::new(false),
            litter: AtomicBool::new(false),
            digest: options.digest,
        })
    }

    /// A number for a worker; none when as many as may be are known or not yet swept.
    pub fn add_worker(&self) -> Option<Worker> {
        self.workers.add(&self.epochs).or_else(|| {
            // Whoever has died is swept out first.
            while self.tidy() {}
            self.workers.add(&self.epochs)
        })
    }

    /// Drops everything of a worker, at once.
    pub fn drop_worker(&self, worker: Worker) {
        if self.workers.end(worker) {
            for shard in &self.shards {
                shard.writer().end(worker.place());
            }
        }
    }

    /// What is held of a worker.
    pub fn held(&self, worker: Worker) -> Held {
        let mut sum = Held::default();
        if !self.workers.lives(worker) {
            return sum;
        }
        for shard in &self.shards {
            let held = shard.writer().held(worker.place());
            sum.count += held.count;
            sum.digest = sum.digest.wrapping_add(held.digest);
            sum.forgotten += held.forgotten;
        }
        sum
    }

    /// Sums over everything.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { bytes: self.budget.used(), ..Totals::default() };
        for shard in &self.shards {
            let writer = shard.writer();
            totals.pairs += writer.pairs;
            totals.forgotten += writer.forgotten;
        }
        totals
    }

    #[inline]
    pub(crate) fn table<'p>(&'p self, place: Place, pin: &'p Pin<'_>) -> &'p [Bucket] {
        self.tables[place.segment as usize].read(pin)
    }

    #[inline]
    pub(crate) fn shard_of(&self, place: Place) -> usize {
        (place.segment >> self.shard_bits) as usize
    }

    /// Asks for the home bucket of a place.
    #[inline]
    pub(crate) fn prefetch(&self, place: Place, pin: &Pin<'_>) {
        let table = self.table(place, pin);
        if let Some(home) = table.get(place.home(table.len())) {
            prefetch(home);
        }
    }

    pub(crate) fn ground<'a>(&'a self, shard: usize, pin: &'a Pin<'a>) -> Ground<'a> {
        Ground {
            tables: &self.tables[shard << self.shard_bits..(shard + 1) << self.shard_bits],
            sets: &self.shards[shard].sets,
            epochs: &self.epochs,
            budget: &self.budget,
            workers: &self.workers,
            pin,
        }
    }
}

impl Shard {
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic is a bug here; what is in the tables is whole at every instant, and an account that is off shows as a doubt.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
