//! Whether Consul is in sight: it answers, and everything that is followed has been read since it does.
//!
//! ```text
//! away --answers--> up (next generation) --every topic read--> in sight
//! any  --no answer, no leader, no permission--> away
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::client::{Ask, CallError, Client};
use super::kv;
use super::metrics::ConsulMetrics;

/// Time between looks: a partition is noticed well within the grace of a broken stream, which is then no loss.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One thing that is followed.
pub type Topic = &'static str;

#[derive(Debug, Default)]
struct State {
    up: bool,
    /// Counts the times that it came up.
    generation: u64,
    /// Counts the signs that Consul may have lost our entries.
    doubts: u64,
    read: BTreeSet<Topic>,
    /// Why it is not in sight.
    trouble: Option<String>,
}

/// Shared by everybody who talks to Consul.
#[derive(Debug)]
pub struct Link {
    topics: usize,
    state: watch::Sender<State>,
    metrics: ConsulMetrics,
}

/// When what is in Consul has to be compared with what should be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occasion {
    generation: u64,
    doubts: u64,
}

impl Occasion {
    /// Which time Consul came up before it.
    pub fn generation(self) -> u64 {
        self.generation
    }
}

impl Link {
    /// Away; in sight needs as many `topics`.
    pub fn new(topics: usize, metrics: ConsulMetrics) -> Self {
        metrics.unreachable.set(1);
        Self { topics, state: watch::Sender::default(), metrics }
    }

    /// Looks for Consul, for ever: reads a key, there or not, which takes a leader and a token that may. Reading a list would not tell: of
    /// what a token may not see, Consul shows nothing.
    pub async fn look(&self, client: &Client, key: &str) {
        loop {
            match client.ask(Ask::get("look", kv::path(key))).await {
                Ok(_) => self.up(),
                Err(error) => self.away(error.to_string()),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn up(&self) {
        let came_up = self.state.send_if_modified(|state| {
            let came_up = !state.up;
            if came_up {
                (state.up, state.generation) = (true, state.generation + 1);
                state.read.clear();
            }
            came_up
        });
        if came_up {
            tracing::info!("Consul answers");
            self.metrics.unreachable.set(0);
            self.metrics.reconnects.inc();
        }
    }

    fn away(&self, why: String) {
        self.metrics.unreachable.set(1);
        self.state.send_if_modified(|state| {
            if state.trouble.as_ref() != Some(&why) {
                tracing::warn!(why, "Consul is away, trying again");
            }
            let left = std::mem::replace(&mut state.up, false);
            state.trouble = Some(why);
            // The first look is news, too.
            left || state.generation == 0
        });
    }

    /// A topic was read; false when that was in another generation.
    pub fn read(&self, topic: Topic, generation: u64) {
        self.state.send_if_modified(|state| {
            let news = state.up && state.generation == generation && state.read.insert(topic);
            if news && state.read.len() == self.topics {
                state.trouble = None;
                tracing::info!("Consul is in sight");
            }
            news
        });
    }

    /// Something does not work although Consul answers.
    pub fn complain(&self, error: &CallError) {
        if matches!(error, CallError::Away { .. }) {
            return;
        }
        let trouble = error.to_string();
        self.state.send_if_modified(|state| {
            if state.trouble.as_ref() != Some(&trouble) {
                tracing::error!(trouble, "Consul does not do what it is asked, trying again");
                state.trouble = Some(trouble);
            }
            false
        });
    }

    /// What was complained about works.
    pub fn content(&self) {
        self.state.send_if_modified(|state| {
            if state.up && state.read.len() == self.topics {
                state.trouble = None;
            }
            false
        });
    }

    /// Consul may have lost our entries.
    pub fn doubt(&self) {
        self.state.send_modify(|state| state.doubts += 1);
    }

    /// Why it is not in sight, or what does not work.
    pub fn trouble(&self) -> Option<String> {
        self.state.borrow().trouble.clone()
    }

    /// The last time to compare, while in sight.
    pub fn in_sight(&self) -> Option<Occasion> {
        let state = self.state.borrow();
        let in_sight = state.up && state.read.len() == self.topics;
        in_sight.then_some(Occasion { generation: state.generation, doubts: state.doubts })
    }

    /// Whether it was looked for in vain.
    pub fn is_away(&self) -> bool {
        let state = self.state.borrow();
        !state.up && state.trouble.is_some()
    }

    /// Waits until it is up; which time that is.
    pub async fn until_up(&self) -> u64 {
        // The sender lives in `self`.
        self.state.subscribe().wait_for(|state| state.up).await.map_or(0, |state| state.generation)
    }

    /// Waits until it is in sight.
    pub async fn until_in_sight(&self) {
        let seen = |state: &State| state.up && state.read.len() == self.topics;
        let _ = self.state.subscribe().wait_for(seen).await;
    }

    /// Waits for the end of a generation.
    pub async fn until_left(&self, generation: u64) {
        let left = |state: &State| !state.up || state.generation != generation;
        let _ = self.state.subscribe().wait_for(left).await;
    }

    /// Resolves at each change; for those who look at everything anyway.
    pub fn subscribe(&self) -> Changes {
        Changes(self.state.subscribe())
    }
}

/// Says that something about the link has changed.
#[derive(Debug)]
pub struct Changes(watch::Receiver<State>);

impl Changes {
    /// Waits for a change that was not waited for yet.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
