//! Watches the engine: whether it answers, what it says of its load, and whether one that comes back is the same.

use std::sync::Arc;
use std::time::Duration;

use armature_svc_kit::discovery_client::{Registration, Status};
use armature_svc_kit::drain::{Drain, Phase};
use http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::client::CallError;
use super::discover;
use super::engine::OpenAiEngine;

/// Longest answer to a health check; a list of models.
const MAX_ANSWER: usize = 8 << 20;
/// Checks without an answer after which the engine is taken for hanging. Nobody listening is enough at once.
const SILENT_CHECKS: u32 = 2;

/// How it is watched.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Between two looks.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub patience: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Answers,
    /// It says that it cannot work, or nobody is there.
    Down,
    Silent,
}

impl OpenAiEngine {
    /// Watches for ever, and publishes what it sees: an engine that does not answer gets no requests, and what it had goes on elsewhere.
    pub async fn watch(self: Arc<Self>, watch: Watch, registration: Registration, drain: Drain) {
        let (mut silent, mut told) = (0, false);
        loop {
            let began = Instant::now();
            let health = self.health(watch.patience).await;
            silent = if health == Health::Silent { silent + 1 } else { 0 };
            let up = *self.up.borrow();
            match health {
                Health::Answers if !up => self.back(&registration, &drain, &mut told).await,
                Health::Answers => {
                    told = false;
                    let load = discover::load(&self.client, self.found.abilities.dialect).await;
                    self.engine_says(load);
                }
                Health::Down if up => {
                    self.gone("it says that it cannot work, or is not there", &registration, &drain)
                }
                Health::Silent if up && silent >= SILENT_CHECKS => {
                    self.gone("it takes connections and does not answer", &registration, &drain);
                }
                Health::Down | Health::Silent => self.engine_says(None),
            }
            tokio::select! {
                () = sleep_until(began + watch.interval) => {}
                () = self.doubt.notified() => {}
            }
        }
    }

    async fn health(&self, patience: Duration) -> Health {
        match self.client.get(self.found.abilities.dialect.health_path(), MAX_ANSWER, patience).await {
            Ok((StatusCode::OK, _)) => Health::Answers,
            Ok(_) | Err(CallError::Refused(_)) => Health::Down,
            Err(CallError::Broken(_) | CallError::Silent(_) | CallError::TooLarge(_)) => Health::Silent,
        }
    }

    fn gone(&self, why: &str, registration: &Registration, drain: &Drain) {
        tracing::warn!(url = %self.client.url(), why, "the engine is away: its requests go on elsewhere");
        self.set_up(false);
        self.engine_says(None);
        publish(Status::Starting, registration, drain);
    }

    /// It answers again. One with another model must not take the place of the one that was announced.
    async fn back(&self, registration: &Registration, drain: &Drain, told: &mut bool) {
        let found = &self.found;
        let wrong = match discover::listed(&self.client, Some(&found.model)).await {
            Ok(listed) if listed.context_length.is_none_or(|context| context >= found.context_length) => None,
            Ok(_) => Some(format!("its context is shorter than {} tokens", found.context_length)),
            Err(error) => Some(error.to_string()),
        };
        let url = self.client.url();
        match wrong {
            None => {
                tracing::info!(%url, "the engine is back");
                self.set_up(true);
                publish(Status::Ready, registration, drain);
            }
            Some(problem) if !std::mem::replace(told, true) => {
                tracing::error!(%url, problem, "the engine came back as another one: start this worker anew");
            }
            Some(_) => {}
        }
    }
}

/// A worker that drains says so and nothing else.
fn publish(status: Status, registration: &Registration, drain: &Drain) {
    if drain.phase() == Phase::Serving {
        registration.request_status(status);
    }
}
