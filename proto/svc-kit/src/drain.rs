//! The end of a service, in order: DRAINING is published, new work is refused, accepted work is
//! finished (or its time is up), the instance is deregistered, the listeners stop.
//!
//! Whoever accepts work calls [`Drain::enter`] and keeps the guard as long as the work lasts;
//! whoever serves waits for [`Drain::stopping`]; the composition root runs [`Drain::run`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Status;

/// How long publishing DRAINING and deregistering may each take: with discovery away, a shutdown
/// must not hang on telling it so.
pub const NOTICE_TIMEOUT: Duration = Duration::from_secs(3);

/// Where a service is between serving and gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Takes new work.
    Serving,
    /// Publishes DRAINING; work already on its way is still taken.
    Announcing,
    /// Takes no new work, finishes what it has.
    Refusing,
    /// Withdraws its registration.
    Deregistering,
    /// Listeners stop.
    Stopping,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    in_flight: usize,
}

/// The handle of one service's shutdown. Clones are the same shutdown.
#[derive(Clone, Debug)]
pub struct Drain {
    state: Arc<watch::Sender<State>>,
}

/// New work is refused because the service shuts down; the caller should go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this instance is draining and takes no new work")]
pub struct Draining;

impl From<Draining> for Fault {
    fn from(draining: Draining) -> Self {
        Self::new(Reason::Draining, draining.to_string())
    }
}

impl From<Draining> for Status {
    fn from(draining: Draining) -> Self {
        Fault::from(draining).into()
    }
}

/// How the in-flight work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All of it finished.
    Finished,
    /// Time was up with this much left.
    TimedOut {
        /// Pieces of work that were cut off.
        in_flight: usize,
    },
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// A service that serves.
    pub fn new() -> Self {
        let (state, _) = watch::channel(State { phase: Phase::Serving, in_flight: 0 });
        Self { state: Arc::new(state) }
    }

    /// Takes on one piece of work, unless new work is refused.
    pub fn enter(&self) -> Result<InFlight, Draining> {
        let entered = self.state.send_if_modified(|state| {
            let open = state.phase < Phase::Refusing;
            state.in_flight += usize::from(open);
            open
        });
        if entered { Ok(InFlight { state: self.state.clone() }) } else { Err(Draining) }
    }

    /// Pieces of work whose guards are alive.
    pub fn in_flight(&self) -> usize {
        self.state.borrow().in_flight
    }

    /// Where the shutdown is.
    pub fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    /// Begins the shutdown; without effect when it has begun.
    pub fn begin(&self) {
        self.advance(Phase::Announcing);
    }

    /// Waits until the shutdown has begun.
    pub async fn draining(&self) {
        self.reached(Phase::Announcing).await;
    }

    /// Waits until new work is refused.
    pub async fn refusing(&self) {
        self.reached(Phase::Refusing).await;
    }

    /// Waits until work in flight has had its time; what still runs should say so and end.
    pub async fn time_up(&self) {
        self.reached(Phase::Deregistering).await;
    }

    /// Waits until the listeners have to stop.
    pub async fn stopping(&self) {
        self.reached(Phase::Stopping).await;
    }

    /// Waits for [`Drain::begin`], then takes the service through its phases.
    ///
    /// `announce` publishes DRAINING and `deregister` withdraws the instance; each is given
    /// [`NOTICE_TIMEOUT`]. In-flight work is given `limit`.
    pub async fn run(
        &self,
        limit: Duration,
        announce: impl Future<Output = ()>,
        deregister: impl Future<Output = ()>,
    ) -> Drained {
        self.draining().await;
        tracing::info!(in_flight = self.in_flight(), "draining");
        if timeout(NOTICE_TIMEOUT, announce).await.is_err() {
            tracing::warn!("could not publish draining in time, going on");
        }
        self.advance(Phase::Refusing);
        let mut state = self.state.subscribe();
        let finished = timeout(limit, state.wait_for(|state| state.in_flight == 0)).await.is_ok();
        let in_flight = self.in_flight();
        let drained = if finished { Drained::Finished } else { Drained::TimedOut { in_flight } };
        self.advance(Phase::Deregistering);
        if timeout(NOTICE_TIMEOUT, deregister).await.is_err() {
            tracing::warn!("could not deregister in time, going on");
        }
        self.advance(Phase::Stopping);
        tracing::info!(?drained, "drained");
        drained
    }

    /// Begins the shutdown at the first SIGTERM or SIGINT and ends the process at the second.
    /// Runs until then; give it a task of its own. Fails when no handler can be installed.
    pub async fn on_signals(self) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
            }
        };
        let first = next().await;
        tracing::info!(signal = first.as_raw_value(), "shutdown requested, a second signal exits at once");
        self.begin();
        let second = next().await;
        tracing::warn!(signal = second.as_raw_value(), "second signal, exiting now");
        // What a shell reports of a process that a signal ended.
        std::process::exit(128 + second.as_raw_value())
    }

    fn advance(&self, phase: Phase) {
        self.state.send_if_modified(|state| {
            let forward = state.phase < phase;
            if forward {
                state.phase = phase;
            }
            forward
        });
    }

    async fn reached(&self, phase: Phase) {
        // The sender is part of self, so the channel cannot close while this waits.
        let _ = self.state.subscribe().wait_for(|state| state.phase >= phase).await;
    }
}

/// One piece of accepted work; dropping it says the work is over.
#[derive(Debug)]
pub struct InFlight {
    state: Arc<watch::Sender<State>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.in_flight -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn phases_come_in_order() {
        let drain = Drain::new();
        let seen = &Mutex::new(Vec::new());
        let drain = &drain;
        let note = |what| async move { seen.lock().unwrap().push((what, drain.phase())) };
        let work = drain.enter().unwrap();
        let finish = async {
            drain.refusing().await;
            assert_eq!(drain.enter().unwrap_err(), Draining);
            assert_eq!(drain.in_flight(), 1);
            drop(work);
        };
        drain.begin();
        let run = drain.run(LIMIT, note("announce"), note("deregister"));
        let (drained, ()) = tokio::join!(run, finish);
        assert_eq!(drained, Drained::Finished);
        assert_eq!(
            *seen.lock().unwrap(),
            [("announce", Phase::Announcing), ("deregister", Phase::Deregistering)]
        );
        drain.stopping().await;
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_taken_until_draining_is_published() {
        let drain = Drain::new();
        drain.begin();
        drain.draining().await;
        let late = drain.enter();
        assert!(late.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_up_even_when_nobody_answers() {
        let drain = Drain::new();
        let _work = drain.enter().unwrap();
        drain.begin();
        let start = tokio::time::Instant::now();
        let run = drain.run(LIMIT, std::future::pending(), std::future::pending());
        let (drained, waited) = tokio::join!(run, async {
            drain.time_up().await;
            start.elapsed()
        });
        assert_eq!(waited, LIMIT + NOTICE_TIMEOUT);
        assert_eq!(drained, Drained::TimedOut { in_flight: 1 });
        assert_eq!(start.elapsed(), LIMIT + 2 * NOTICE_TIMEOUT);
        assert_eq!(drain.phase(), Phase::Stopping);
    }
}
