//! What is measured of a subject.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::workload::{Chain, Shape, Stored, random};

/// An index to be measured. Changes are made by [`Self::store`] and [`Self::remove`], and applied when [`Self::settle`] returns.
pub(crate) trait Subject: Sync {
    type Search: Default;
    /// Whether changes wait until [`Self::settle`].
    const QUEUES: bool;

    fn store(&self, stored: Stored<'_>);
    /// Blocks that will be stored or removed a few events later.
    fn expect(&self, blocks: &[u64]);
    fn remove(&self, worker: u64, blocks: &[u64]);
    fn settle(&self);
    /// Applies the changes that `make` makes; CPU time of applying them.
    fn write(&self, make: &mut dyn FnMut()) -> Duration;
    /// How many workers match, and the longest match.
    fn find(&self, prompt: &Chain, search: &mut Self::Search) -> (usize, u32);
}

const PROMPTS: u64 = 400;
const FINDS: usize = 40_000;
/// Chains that are stored by turns.
const UNDER_WAY: usize = 64;
/// Worker of the concurrent writer, beyond those of the shape.
const WRITER: u64 = 1;
/// Chains that it stores and removes.
const PASSING: u64 = 512;

/// Named numbers, in order.
pub(crate) struct Figures(pub(crate) Vec<(String, f64)>);

impl Figures {
    pub(crate) fn lines(&self) -> String {
        self.0.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    pub(crate) fn parse(text: &str) -> Self {
        let pair = |line: &str| {
            let (name, value) = line.split_once('=').expect("name=value");
            (name.to_owned(), value.parse().expect("a number"))
        };
        Self(text.lines().map(pair).collect())
    }
}

/// Bytes of memory this process has.
pub(crate) fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4096
}

pub(crate) fn run<S: Subject>(subject: &S, shape: &Shape) -> Figures {
    let mut figures = Vec::new();
    let mut say = |name: &str, value: f64| figures.push((name.to_owned(), value));
    let chains = shape.chains();
    let before = resident();
    say("store, ns/block", fill(subject, shape, &chains));
    say("bytes/pair", resident().saturating_sub(before) as f64 / shape.pairs(&chains) as f64);
    if shape.event > 1 {
        let [whole, half, strange] = shape.prompts(&chains, PROMPTS);
        let depth = shape.blocks as u32;
        for (name, prompts, depth) in
            [("full hit", &whole, depth), ("half hit", &half, depth / 2), ("miss", &strange, 0)]
        {
            let (median, high) = finds(subject, prompts, depth);
            say(&format!("{name} p50, us"), median);
            say(&format!("{name} p99, us"), high);
        }
        let (finds, operations) = together(subject, shape, &half);
        say("1 reader + 1 writer: finds/s", finds);
        say("1 reader + 1 writer: blocks/s", operations);
    }
    let (store, remove) = steady(subject, shape);
    say("store again, ns/block", store);
    say("remove, ns/block", remove);
    Figures(figures)
}

/// Stores everything, some chains under way at a time; CPU time per pair.
fn fill<S: Subject>(subject: &S, shape: &Shape, chains: &[Chain]) -> f64 {
    let mut spent = Duration::ZERO;
    // Chains that begin alike wait for each other, as their workers' requests do.
    for chains in chains.chunks(if shape.alike { 1 } else { UNDER_WAY }) {
        let store = |stored: Stored<'_>| subject.store(stored);
        spent += subject.write(&mut || shape.events(chains, |blocks| subject.expect(blocks), store));
    }
    spent.as_nanos() as f64 / shape.pairs(chains) as f64
}

/// Median and 99th percentile of a call, microseconds.
fn finds<S: Subject>(subject: &S, prompts: &[Chain], depth: u32) -> (f64, f64) {
    let mut search = S::Search::default();
    for prompt in prompts {
        assert_eq!(subject.find(prompt, &mut search), (prompt.matching, depth), "a wrong answer");
    }
    let mut times = Vec::with_capacity(FINDS);
    for n in 0..FINDS as u64 {
        let prompt = &prompts[(random(n) % prompts.len() as u64) as usize];
        // It has just come in: its hashes are in the cache, those of the index are where they are.
        black_box(prompt.touched());
        let start = Instant::now();
        black_box(subject.find(black_box(prompt), &mut search));
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    (times[FINDS / 2] as f64 / 1e3, times[FINDS * 99 / 100] as f64 / 1e3)
}

/// Chains of one more worker, which come and go.
fn passing(shape: &Shape) -> (Shape, Vec<Chain>) {
    let chains: Vec<_> = (0..PASSING).map(|n| Chain::new(1 << 32 | n, 512)).collect();
    (Shape { workers: 1, chains: PASSING, blocks: 512, holders: 1, event: shape.event, alike: false }, chains)
}

fn store_all<S: Subject>(subject: &S, shape: &Shape, chains: &[Chain]) {
    shape.events(
        chains,
        |blocks| subject.expect(blocks),
        |stored| subject.store(Stored { worker: WRITER, ..stored }),
    );
}

fn remove_all<S: Subject>(subject: &S, shape: &Shape, chains: &[Chain]) {
    let runs: Vec<_> = chains.iter().flat_map(|chain| chain.sequence.rchunks(shape.event)).collect();
    let ahead = shape.ahead();
    for (at, blocks) in runs.iter().enumerate() {
        if let Some(later) = runs.get(at + ahead) {
            subject.expect(later);
        }
        subject.remove(WRITER, blocks);
    }
}

/// Finds and block operations per second of a reader beside a writer that stores and removes.
fn together<S: Subject>(subject: &S, shape: &Shape, prompts: &[Chain]) -> (f64, f64) {
    const ROUNDS: u64 = 5;
    let (shape, chains) = passing(shape);
    let (begin, done) = (Barrier::new(2), AtomicBool::new(false));
    let change = || {
        for _ in 0..ROUNDS {
            store_all(subject, &shape, &chains);
            remove_all(subject, &shape, &chains);
        }
    };
    if S::QUEUES {
        change();
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            begin.wait();
            if !S::QUEUES {
                change();
            }
            subject.settle();
            done.store(true, Ordering::Release);
            2 * ROUNDS * shape.pairs(&chains)
        });
        begin.wait();
        let (start, mut finds) = (Instant::now(), 0u64);
        let mut search = S::Search::default();
        while !done.load(Ordering::Acquire) {
            let prompt = &prompts[(random(finds) % prompts.len() as u64) as usize];
            black_box(prompt.touched());
            black_box(subject.find(black_box(prompt), &mut search));
            finds += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let operations = writer.join().expect("the writer ends well");
        (finds as f64 / seconds, operations as f64 / seconds)
    })
}

/// CPU time per block that is stored and removed again and again, without growth.
fn steady<S: Subject>(subject: &S, shape: &Shape) -> (f64, f64) {
    const ROUNDS: u32 = 4;
    let (shape, chains) = passing(shape);
    let (mut store, mut remove) = (Duration::ZERO, Duration::ZERO);
    for round in 0..=ROUNDS {
        let stored = subject.write(&mut || store_all(subject, &shape, &chains));
        let removed = subject.write(&mut || remove_all(subject, &shape, &chains));
        if round > 0 {
            store += stored;
            remove += removed;
        }
    }
    let per_block =
        |spent: Duration| spent.as_nanos() as f64 / (u64::from(ROUNDS) * shape.pairs(&chains)) as f64;
    (per_block(store), per_block(remove))
}
