//! Step times as workers measure them, one fit per type of worker.
//!
//! A worker reports what a step of its engine takes, as its own least squares have it:
//!
//! ```text
//! t = base + p * prefill tokens + d * decode rows + c * positions attended to        ms
//! ```
//!
//! Workers of equal engine, model and compatibility key are one type, and all of a type are rated by one fit: one with its own fit beside one without
//! would draw all work or none. The prefill side is that of the median worker among those that prefill, the decode side among those that
//! lead; so a few that report nonsense change nothing. A fit is *poor*, and counts for nothing at all, when
//!
//! - a coefficient is negative or no number, or the step times that follow from them are absurd: below a microsecond or above ten minutes;
//! - fewer than [`LEAST`] steps are behind it;
//! - the workers disagree: the third quartile of their reference times is more than [`SPREAD`] times the first.
//!
//! What is left is trusted in proportion to the steps `n` behind it, `n / (n + 256)`, and the card's prior for the rest
//! ([`super::step_cost`]). So a decision with poor fits is, bit for bit, the one that the priors make, and with few observations it lies between.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::step_cost::DEFAULT_PASS_TOKENS;
use super::units::Time;
use super::worker::{Digest, Worker};

/// Steps that a worker's fit needs to be looked at.
const LEAST: u64 = 32;
/// Most steps that count for one worker.
const MOST: u64 = 4_096;
/// Steps at which fit and prior weigh the same.
const EVEN: f64 = 256.0;
/// Quartiles further apart than this are not of one type.
const SPREAD: f64 = 4.0;
/// Milliseconds within which a step can be.
const CREDIBLE: (f64, f64) = (1e-3, 600_000.0);
/// Fits change slowly: so often they are made again at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// Positions attended to and rows of the decode step that is looked at.
const REFERENCE_DECODE: (f64, f64) = (16.0, 65_536.0);

/// What a worker reports of its steps, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepModel {
    /// Of every step.
    pub base: f64,
    /// Per prefill token.
    pub prefill_token: f64,
    /// Per decode row.
    pub decode_row: f64,
    /// Per position attended to.
    pub position: f64,
    /// Steps behind it.
    pub observations: u64,
}

impl StepModel {
    /// A pass over `tokens` tokens from the start of a sequence.
    pub fn pass(&self, tokens: f64) -> f64 {
        self.base + self.prefill_token * tokens + self.position * tokens * (tokens + 1.0) / 2.0
    }

    /// A decode step of `rows` sequences with `positions` tokens together.
    pub fn step(&self, rows: f64, positions: f64) -> f64 {
        self.base + self.decode_row * rows + self.position * positions
    }

    fn credible(&self) -> bool {
        let coefficients = [self.base, self.prefill_token, self.decode_row, self.position];
        let pass = self.pass(DEFAULT_PASS_TOKENS as f64);
        let step = self.step(REFERENCE_DECODE.0, REFERENCE_DECODE.1);
        let within = |time: f64| time >= CREDIBLE.0 && time <= CREDIBLE.1;
        coefficients.iter().all(|value| value.is_finite() && *value >= 0.0) && within(pass) && within(step)
    }
}

/// A fit, and how far it is trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trusted {
    /// The coefficients.
    pub model: StepModel,
    /// Share of the fit, the rest is the prior's: above 0 and below 1.
    pub share: f64,
}

/// The fit of a type of worker; where a side is none its workers are rated by their priors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepFit {
    /// Of passes.
    pub prefill: Option<Trusted>,
    /// Of decode steps.
    pub decode: Option<Trusted>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Type {
    engine: Arc<str>,
    model: Digest,
    compat_key: Digest,
}

impl Type {
    fn of(worker: &Worker) -> Self {
        Self {
            engine: worker.engine.clone(),
            model: worker.set.model.clone(),
            compat_key: worker.compat_key.clone(),
        }
    }
}

/// What workers report, and the fits made of it.
#[derive(Debug, Default)]
pub struct Fits {
    reported: BTreeMap<WorkerRank, StepModel>,
    fits: HashMap<Type, StepFit>,
    due: Time,
}

impl Fits {
    /// Takes what a worker reports.
    pub fn take(&mut self, rank: WorkerRank, model: StepModel) {
        self.reported.insert(rank, model);
    }

    /// Forgets a worker.
    pub fn drop_rank(&mut self, rank: WorkerRank) {
        self.reported.remove(&rank);
    }

    /// The fit of a worker's type.
    pub fn of(&self, worker: &Worker) -> StepFit {
        if self.fits.is_empty() {
            return StepFit::default();
        }
        self.fits.get(&Type::of(worker)).copied().unwrap_or_default()
    }

    /// Makes the fits again, once a second at most. Answers whether it did.
    pub fn refresh<'w>(&mut self, workers: impl Iterator<Item = &'w Worker>, now: Time) -> bool {
        if now < self.due || self.reported.is_empty() {
            return false;
        }
        self.due = now.after(INTERVAL);
        let mut types: HashMap<Type, (Vec<StepModel>, Vec<StepModel>)> = HashMap::new();
        for worker in workers {
            let Some(model) = self.reported.get(&worker.rank) else { continue };
            let (prefill, decode) = types.entry(Type::of(worker)).or_default();
            if worker.roles.aggregated || worker.roles.prefill {
                prefill.push(*model);
            }
            if worker.roles.leads() {
                decode.push(*model);
            }
        }
        let fit = |(prefill, decode)| StepFit {
            prefill: median(prefill, |model| model.pass(DEFAULT_PASS_TOKENS as f64)),
            decode: median(decode, |model| model.step(REFERENCE_DECODE.0, REFERENCE_DECODE.1)),
        };
        self.fits = types.into_iter().map(|(of, models)| (of, fit(models))).collect();
        true
    }
}

/// The median worker's, with the steps of all behind it; none when it is poor.
fn median(mut models: Vec<StepModel>, time: impl Fn(&StepModel) -> f64) -> Option<Trusted> {
    models.retain(|model| model.observations >= LEAST && model.credible());
    models.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let last = models.len().checked_sub(1)?;
    let (first, third) = (time(&models[last / 4]), time(&models[last - last / 4]));
    if third > SPREAD * first {
        return None;
    }
    let observations = models.iter().map(|model| model.observations.min(MOST)).sum::<u64>() as f64;
    Some(Trusted { model: models[last / 2], share: observations / (observations + EVEN) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(observations: u64) -> StepModel {
        StepModel { base: 2.0, prefill_token: 0.05, decode_row: 0.1, position: 1e-6, observations }
    }

    fn of(models: &[StepModel]) -> Option<Trusted> {
        median(models.to_vec(), |model| model.pass(8192.0))
    }

    #[test]
    fn what_is_poor_counts_for_nothing() {
        let broken = [
            StepModel { base: f64::NAN, ..good(1_000) },
            StepModel { prefill_token: f64::INFINITY, ..good(1_000) },
            StepModel { decode_row: -1e-9, ..good(1_000) },
            StepModel { prefill_token: 1e9, ..good(1_000) },
            StepModel { observations: 1_000, ..StepModel::default() },
            good(0),
            good(LEAST - 1),
        ];
        assert_eq!(of(&[]), None);
        for model in broken {
            assert_eq!(of(&[model]), None, "{model:?}");
        }
        assert_eq!(of(&broken), None);
        // Beside many that are none, one that is good is used, and nothing of the others.
        let beside: Vec<_> = broken.into_iter().chain([good(256)]).collect();
        assert_eq!(of(&beside), Some(Trusted { model: good(256), share: 0.5 }));
    }

    #[test]
    fn a_few_that_are_far_off_change_nothing_and_many_make_it_poor() {
        let slow = StepModel { prefill_token: 5.0, ..good(1_000) };
        let models = |slow_ones: usize| -> Vec<_> {
            (0..9).map(|n| if n < slow_ones { slow } else { good(1_000) }).collect()
        };
        for few in 0..=2 {
            assert_eq!(of(&models(few)).map(|trusted| trusted.model), Some(good(1_000)));
        }
        for many in 3..=6 {
            assert_eq!(of(&models(many)), None);
        }
    }

    #[test]
    fn trust_grows_with_the_steps_and_one_worker_has_only_so_many() {
        let share = |models: &[StepModel]| of(models).map_or(0.0, |trusted| trusted.share);
        assert!(share(&[good(32)]) < 0.2 && share(&[good(10_000)]) > 0.9);
        assert_eq!(share(&[good(u64::MAX)]), share(&[good(MOST)]));
        assert_eq!(share(&[good(128), good(128)]), 0.5);
    }
}
