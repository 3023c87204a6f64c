//! A model of Redis with exactly the commands used, in memory, with faults drawn from a seed.
//!
//! Each command is one step, as in Redis. Between a command and its answer anything may happen: delay, loss before or after it is done, being
//! done after its sender has given up, a restart that empties it, a failover to a copy that lacks the last writes, full memory, a freeze.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use armature_kv_redis::{Command, ConnectError, Connector, Entry, Lost, Notices, Refusal, Reply, Store};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, timeout};

/// Time after which a client gives up.
const PATIENCE: Duration = Duration::from_secs(1);

/// How things go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// Longest delay of a call, in milliseconds.
    pub delay_ms: u64,
    /// Probability that a call is lost; of those a third is done first, and a third later.
    pub lost: f64,
    /// Probability that a notification reaches nobody.
    pub unheard: f64,
}

/// The server; clones are the same.
#[derive(Debug, Clone)]
pub struct SimRedis {
    world: Arc<Mutex<World>>,
    channel: broadcast::Sender<Bytes>,
    frozen: watch::Sender<bool>,
}

#[derive(Debug)]
struct World {
    data: Data,
    copies: Vec<Data>,
    weather: Weather,
    rng: StdRng,
    down: bool,
    full: bool,
    /// Connections of earlier ones are broken.
    life: u64,
}

#[derive(Debug, Clone, Default)]
struct Data {
    streams: HashMap<String, Stream>,
    hashes: HashMap<String, BTreeMap<u32, Bytes>>,
    expires: HashMap<String, Instant>,
}

#[derive(Debug, Clone, Default)]
struct Stream {
    entries: BTreeMap<u64, (Bytes, u64)>,
    last: u64,
}

impl SimRedis {
    /// An empty server in fair weather.
    pub fn new(seed: u64) -> Self {
        let world = World {
            data: Data::default(),
            copies: Vec::new(),
            weather: Weather::default(),
            rng: StdRng::seed_from_u64(seed),
            down: false,
            full: false,
            life: 0,
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            // A subscriber that reads too late loses what is oldest: a notification is a hint.
            channel: broadcast::channel(4096).0,
            frozen: watch::Sender::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub fn weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    /// Away: nothing connects, connections break.
    pub fn kill(&self) {
        let mut world = self.lock();
        world.down = true;
        world.life += 1;
    }

    /// Back, and empty.
    pub fn revive(&self) {
        let mut world = self.lock();
        world.down = false;
        world.data = Data::default();
        world.copies.clear();
    }

    /// Answers nothing; what is sent is done when it thaws.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Goes on.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Whether writes that need memory are refused.
    pub fn full(&self, full: bool) {
        self.lock().full = full;
    }

    /// What a replica has by now.
    pub fn replicate(&self) {
        let mut world = self.lock();
        let copy = world.data.clone();
        world.copies.push(copy);
        if world.copies.len() > 4 {
            world.copies.remove(0);
        }
    }

    /// The primary is lost, and a replica that lacks the last writes takes over.
    pub fn fail_over(&self) {
        let mut world = self.lock();
        world.life += 1;
        let age = world.copies.len();
        if age > 0 {
            let which = world.rng.random_range(0..age);
            world.data = world.copies.swap_remove(which);
        }
        world.copies.clear();
    }

    /// Bytes of contents, keys not counted.
    pub fn bytes(&self) -> usize {
        let world = self.lock();
        let entries = world.data.streams.values().flat_map(|stream| stream.entries.values());
        let chunks = world.data.hashes.values().flat_map(BTreeMap::values);
        entries.map(|(payload, _)| payload.len()).sum::<usize>() + chunks.map(Bytes::len).sum::<usize>()
    }

    /// Entries and chunks held for keys that contain `part`.
    pub fn held(&self, part: &str) -> (usize, usize) {
        let world = self.lock();
        let streams = world.data.streams.iter().filter(|(key, _)| key.contains(part));
        let hashes = world.data.hashes.iter().filter(|(key, _)| key.contains(part));
        (streams.map(|(_, stream)| stream.entries.len()).sum(), hashes.map(|(_, hash)| hash.len()).sum())
    }

    async fn thawed(&self) {
        let mut frozen = self.frozen.subscribe();
        let _ = frozen.wait_for(|frozen| !*frozen).await;
    }

    fn execute(&self, commands: &[Command]) -> Vec<Reply> {
        let mut world = self.lock();
        let replies = commands.iter().map(|command| world.execute(command, &self.channel)).collect();
        drop(world);
        replies
    }
}

impl World {
    fn execute(&mut self, command: &Command, channel: &broadcast::Sender<Bytes>) -> Reply {
        self.data.expire();
        let grows = matches!(command, Command::Append { .. } | Command::PutChunk { .. });
        if grows && self.full {
            return Reply::Refused(Refusal::Full);
        }
        let data = &mut self.data;
        match command {
            Command::Append { key, id, payload, at_ms, keep } => {
                let stream = data.streams.entry(key.clone()).or_default();
                if *id <= stream.last {
                    return Reply::Refused(Refusal::NotGreater);
                }
                stream.last = *id;
                stream.entries.insert(*id, (payload.clone(), *at_ms));
                while keep.is_some_and(|keep| stream.entries.len() > keep as usize) {
                    stream.entries.pop_first();
                }
                Reply::Done
            }
            Command::Read { key, from, count } => {
                let stream = data.streams.get(key);
                Reply::Entries(stream.map_or_else(Vec::new, |stream| {
                    stream.entries.range(*from..).take(*count).map(entry).collect()
                }))
            }
            Command::Newest { key, count } => {
                let stream = data.streams.get(key);
                Reply::Entries(stream.map_or_else(Vec::new, |stream| {
                    stream.entries.iter().rev().take(*count).map(entry).collect()
                }))
            }
            Command::Trim { key, below } => {
                if let Some(stream) = data.streams.get_mut(key) {
                    stream.entries = stream.entries.split_off(below);
                }
                Reply::Done
            }
            Command::PutChunk { key, chunk, payload } => {
                data.hashes.entry(key.clone()).or_default().insert(*chunk, payload.clone());
                Reply::Done
            }
            Command::Chunk { key, chunk } => {
                Reply::Chunk(data.hashes.get(key).and_then(|hash| hash.get(chunk)).cloned())
            }
            Command::Expire { key, after } => {
                let there = data.streams.contains_key(key) || data.hashes.contains_key(key);
                if there {
                    data.expires.insert(key.clone(), Instant::now() + *after);
                }
                Reply::Present(there)
            }
            Command::Drop { key } => {
                data.drop_key(key);
                Reply::Done
            }
            Command::Notify { notice, .. } => {
                if !self.rng.random_bool(self.weather.unheard) {
                    let _ = channel.send(Bytes::copy_from_slice(notice.as_bytes()));
                }
                Reply::Done
            }
        }
    }
}

impl Data {
    fn expire(&mut self) {
        let now = Instant::now();
        let gone: Vec<_> =
            self.expires.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| self.drop_key(key));
    }

    fn drop_key(&mut self, key: &str) {
        self.streams.remove(key);
        self.hashes.remove(key);
        self.expires.remove(key);
    }
}

fn entry((id, (payload, at_ms)): (&u64, &(Bytes, u64))) -> Entry {
    Entry { id: *id, payload: payload.clone(), at_ms: *at_ms }
}

/// A connection.
#[derive(Debug, Clone)]
pub struct SimStore {
    server: SimRedis,
    life: u64,
    broken: Arc<std::sync::atomic::AtomicBool>,
}

impl SimStore {
    fn lose(&self) -> Lost {
        self.broken.store(true, std::sync::atomic::Ordering::Relaxed);
        Lost("the simulation lost it".into())
    }

    fn alive(&self) -> bool {
        let world = self.server.lock();
        !world.down && world.life == self.life && !self.broken.load(std::sync::atomic::Ordering::Relaxed)
    }
}

enum Fate {
    Answered,
    Never,
    DoneUnanswered,
    DoneLater(Duration),
}

impl Store for SimStore {
    async fn run(&mut self, commands: Vec<Command>) -> Result<Vec<Reply>, Lost> {
        let (delay, fate) = {
            let mut world = self.server.lock();
            let weather = world.weather;
            let delay = Duration::from_millis(world.rng.random_range(0..=weather.delay_ms));
            let fate = match world.rng.random_bool(weather.lost) {
                false => Fate::Answered,
                true => match world.rng.random_range(0..3) {
                    0 => Fate::Never,
                    1 => Fate::DoneUnanswered,
                    _ => Fate::DoneLater(Duration::from_millis(world.rng.random_range(0..3_000))),
                },
            };
            (delay, fate)
        };
        sleep(delay).await;
        if !self.alive() {
            return Err(self.lose());
        }
        if timeout(PATIENCE, self.server.thawed()).await.is_err() {
            // It lies in the socket of the frozen server.
            let (server, life) = (self.server.clone(), self.life);
            tokio::spawn(async move {
                server.thawed().await;
                if server.lock().life == life {
                    server.execute(&commands);
                }
            });
            return Err(self.lose());
        }
        match fate {
            Fate::Answered => Ok(self.server.execute(&commands)),
            Fate::Never => Err(self.lose()),
            Fate::DoneUnanswered => {
                self.server.execute(&commands);
                Err(self.lose())
            }
            Fate::DoneLater(after) => {
                let (server, life) = (self.server.clone(), self.life);
                tokio::spawn(async move {
                    sleep(after).await;
                    if server.lock().life == life {
                        server.execute(&commands);
                    }
                });
                Err(self.lose())
            }
        }
    }
}

impl Connector for SimRedis {
    type Store = SimStore;

    async fn connect(&self) -> Result<SimStore, ConnectError> {
        if timeout(PATIENCE, self.thawed()).await.is_err() {
            return Err(ConnectError::Unreachable("it is frozen".into()));
        }
        let world = self.lock();
        if world.down {
            return Err(ConnectError::Unreachable("it is away".into()));
        }
        Ok(SimStore { server: self.clone(), life: world.life, broken: Arc::default() })
    }

    async fn listen(&self, _channel: &str) -> Result<Notices, ConnectError> {
        let life = {
            let world = self.lock();
            if world.down {
                return Err(ConnectError::Unreachable("it is away".into()));
            }
            world.life
        };
        let state = (self.clone(), self.channel.subscribe());
        let stream = futures_util::stream::unfold(state, move |(server, mut receiver)| async move {
            loop {
                match receiver.recv().await {
                    Ok(text) if server.lock().life == life => return Some((text, (server, receiver))),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    _ => return None,
                }
            }
        });
        Ok(stream.boxed())
    }
}
