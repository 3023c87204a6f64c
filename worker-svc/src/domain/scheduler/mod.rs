//! The scheduler: which tokens of which sequences the engine computes next, and in which blocks.
//!
//! Pure and synchronous; the driver's loop is
//! `submit / cancel / landing_* / source_*` -> [`plan`](Scheduler::plan) -> the engine's pass and
//! sampling -> [`commit`](Scheduler::commit) (or [`fail_step`](Scheduler::fail_step)) ->
//! [`take_effects`](Scheduler::take_effects). Inputs may come at any time, between plan and commit as well.
//!
//! ```text
//! Scheduler::new(config: SchedulerConfig) -> Scheduler
//! submit(&mut self, Submission, now: Time) -> Result<RequestId, Refusal>
//! cancel(&mut self, RequestId, now)                  whole request, in every state; unknown: ignored
//! cancel_choice(&mut self, RequestId, choice: u32, now)
//! drain(&mut self, now)                              submit answers Draining from now on
//! migrate_all(&mut self, now)                        every unfinished choice ends with Migrate
//!
//! plan(&mut self, now) -> StepPlan                   empty: nothing to do until another input
//! history(&self, SeqId) -> Option<History<'_>>       {prompt: &[u32], generated: &[u32]}
//! commit(&mut self, StepPlan, StepResult, now)
//! fail_step(&mut self, StepPlan, message: &str, now)
//! take_effects(&mut self) -> Vec<Effect>
//!
//! landing_begin(&mut self, RequestId, now) -> Result<(), LandingError>
//! landing_started(&mut self, RequestId, WindowIndex, now) -> Result<(), LandingError>
//! landing_landed(&mut self, RequestId, WindowIndex, now) -> Result<(), LandingError>
//! landing_first_tokens(&mut self, RequestId, Vec<(u32, Sampled)>, now) -> Result<(), LandingError>
//! landing_complete(&mut self, RequestId, now) -> Result<(), LandingError>     all KV is there: decode
//! landing_committed(&mut self, RequestId, now) -> Result<(), LandingError>    AckConfirmed: cacheable
//! landing_failed(&mut self, RequestId, Fallback, now) -> Result<(), LandingError>
//! quarantine_released(&mut self, RequestId, now)
//!
//! source_granted(&mut self, RequestId, now)          the decode worker has made room: no backpressure
//! source_released(&mut self, RequestId, now)         Ack, Abort or deadline: unpin
//!
//! report(&mut self, Option<SettledCursor>, now) -> LoadReport
//! poll_kv_events(&mut self, now) -> Option<Arc<KvBatch>>
//! kv_events(&mut self) -> &mut KvEvents              resume, snapshot
//! next_wakeup(&self) -> Option<Time>                 earliest deadline or batch that is due
//! ```

mod config;
mod effect;
mod step;

pub use config::SchedulerConfig;
pub use effect::Effect;
pub use step::{BlockCopy, PlannedChunk, StepPlan, StepResult};
