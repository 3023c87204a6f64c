//! Chains of blocks, who holds them, and prompts that ask for them. Deterministic.

use std::collections::HashSet;

use dynamo_kv_router::protocols::{LocalBlockHash, compute_seq_hash_for_block};

/// A workload.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) workers: u64,
    pub(crate) chains: u64,
    pub(crate) blocks: usize,
    /// Workers that have each chain.
    pub(crate) holders: u64,
    /// Blocks per event.
    pub(crate) event: usize,
    /// Whether chains begin alike: an eighth with one of 16 system prompts, then to the half with one of 128 documents.
    pub(crate) alike: bool,
}

/// Blocks of a prompt: hashes of their own tokens, and chained ones.
#[derive(Clone)]
pub(crate) struct Chain {
    /// The first worker that has it.
    pub(crate) worker: u64,
    /// Blocks that this worker has already when it stores the chain.
    pub(crate) known: usize,
    /// Workers that have its first block.
    pub(crate) matching: usize,
    pub(crate) local: Vec<LocalBlockHash>,
    pub(crate) sequence: Vec<u64>,
}

/// Blocks of one worker, below a parent.
pub(crate) struct Stored<'a> {
    pub(crate) worker: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) local: &'a [LocalBlockHash],
    pub(crate) sequence: &'a [u64],
}

pub(crate) fn random(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Chain {
    fn of(worker: u64, matching: usize, local: Vec<LocalBlockHash>) -> Self {
        let sequence = compute_seq_hash_for_block(&local);
        Self { worker, known: 0, matching, local, sequence }
    }

    /// A chain that shares nothing.
    pub(crate) fn new(seed: u64, blocks: usize) -> Self {
        Self::of(0, 0, (0..blocks as u64).map(|block| local(seed, block)).collect())
    }

    /// Reads all of it.
    pub(crate) fn touched(&self) -> u64 {
        self.local.iter().zip(&self.sequence).fold(0, |sum, (local, hash)| sum ^ local.0 ^ hash)
    }

    /// The first half of this one, then blocks that nobody has.
    fn half(&self, seed: u64) -> Self {
        let blocks = self.local.iter().zip(0..);
        let half = self.local.len() / 2;
        let blocks =
            blocks.map(|(known, block)| if block < half { *known } else { local(seed, block as u64) });
        Self::of(self.worker, self.matching, blocks.collect())
    }
}

fn local(seed: u64, block: u64) -> LocalBlockHash {
    LocalBlockHash(random(seed << 20 | block))
}

impl Shape {
    /// Chains in the order in which they are stored.
    pub(crate) fn chains(&self) -> Vec<Chain> {
        let mut chains: Vec<_> = (0..self.chains).map(|chain| self.chain(chain)).collect();
        let mut has = HashSet::new();
        for chain in chains.iter_mut().filter(|_| self.alike) {
            // What comes later in a chain is had by whoever has what comes before.
            chain.known =
                chain.sequence.iter().take_while(|hash| has.contains(&(chain.worker, **hash))).count();
            has.extend(chain.sequence.iter().map(|hash| (chain.worker, *hash)));
        }
        let firsts: HashSet<_> = chains.iter().map(|chain| (chain.sequence[0], chain.worker)).collect();
        for chain in &mut chains {
            let matching = firsts.iter().filter(|(first, _)| *first == chain.sequence[0]).count();
            chain.matching = matching * self.holders as usize;
        }
        chains
    }

    fn chain(&self, chain: u64) -> Chain {
        let part = |block: u64| match block * 8 / self.blocks as u64 {
            0 if self.alike => 1 << 24 | chain % 16,
            1..4 if self.alike => 1 << 25 | chain % 128,
            _ => chain + 1,
        };
        let blocks = (0..self.blocks as u64).map(|block| local(part(block), block));
        let worker = if self.alike { random(chain) % self.workers } else { chain % self.workers };
        Chain::of(worker, 0, blocks.collect())
    }

    /// (worker, block) of some chains.
    pub(crate) fn pairs(&self, chains: &[Chain]) -> u64 {
        chains.iter().map(|chain| (chain.sequence.len() - chain.known) as u64 * self.holders).sum()
    }

    /// Events by which what is expected is ahead: about a batch of blocks, as events come in batches.
    pub(crate) fn ahead(&self) -> usize {
        (16 / self.event).max(1)
    }

    /// Calls `store` for every event of chains that are stored by turns; before it `expect` for one that comes later.
    pub(crate) fn events(
        &self,
        chains: &[Chain],
        expect: impl Fn(&[u64]),
        mut store: impl FnMut(Stored<'_>),
    ) {
        let ahead = self.ahead();
        let rounds = self.blocks.div_ceil(self.event);
        let run = |chain: &Chain, round: usize| {
            let from = chain.known + round * self.event;
            from.min(chain.sequence.len())..(from + self.event).min(chain.sequence.len())
        };
        for round in 0..rounds {
            for (place, chain) in chains.iter().enumerate() {
                let later = (place + ahead) % chains.len();
                let later_round = round + (place + ahead) / chains.len();
                expect(&chains[later].sequence[run(&chains[later], later_round)]);
                let blocks = run(chain, round);
                if blocks.is_empty() {
                    continue;
                }
                for holder in 0..self.holders {
                    store(Stored {
                        worker: (chain.worker + holder * 7) % self.workers,
                        parent: blocks.start.checked_sub(1).map(|parent| chain.sequence[parent]),
                        local: &chain.local[blocks.clone()],
                        sequence: &chain.sequence[blocks.clone()],
                    });
                }
            }
        }
    }

    /// Prompts that are known whole, to the half, and not at all.
    pub(crate) fn prompts(&self, chains: &[Chain], number: u64) -> [Vec<Chain>; 3] {
        let known: Vec<_> = (0..number).map(|n| chains[(random(n) % self.chains) as usize].clone()).collect();
        let half = known.iter().zip(0..).map(|(chain, n)| chain.half(1 << 30 | n)).collect();
        let strange = (0..number).map(|n| Chain::new(1 << 31 | n, self.blocks)).collect();
        [known, half, strange]
    }
}
