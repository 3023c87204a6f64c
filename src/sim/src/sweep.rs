//! Many runs: each way of routing, each fleet, each pace, each seed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::measure::Outcome;
use crate::pace::Pace;
use crate::settings::{Pools, Settings};
use crate::simulation::{Progress, SimError, Simulation};
use crate::trace::Trace;
use crate::workload::Workload;
use armature_router::domain::policy::PolicyKind;

/// Where requests come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A trace.
    File(PathBuf),
    /// Made up, from the seed of the run.
    Made(Workload),
}

/// What is varied, and what stays.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// The workload.
    pub source: Source,
    /// At most so many requests of it.
    pub limit: Option<u64>,
    /// The fleets.
    pub pools: Vec<Pools>,
    /// Arrivals so many times faster than recorded.
    pub speeds: Vec<f64>,
    /// The policies.
    pub policies: Vec<PolicyKind>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Spreads out arrivals.
    pub pace: Pace,
    /// Everything else.
    pub settings: Settings,
}

/// One fleet, pace and policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The fleet.
    pub pools: Pools,
    /// The pace.
    pub speed: f64,
    /// The policy.
    pub policy: PolicyKind,
}

impl Case {
    /// In words.
    pub fn name(&self) -> String {
        format!("{} workers, {}x, {}", self.pools, self.speed, self.policy.name())
    }
}

/// The runs of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseOutcome {
    /// The fleet: a number, or `2P+6D`.
    pub workers: String,
    /// Arrivals so many times faster than recorded.
    pub speed: f64,
    /// The policy.
    pub policy: String,
    /// The seeds, in the order of `runs`.
    pub seeds: Vec<u64>,
    /// A run for each seed.
    pub runs: Vec<Outcome>,
}

impl CaseOutcome {
    /// Mean, smallest and largest of a value over the seeds.
    pub fn over_seeds(&self, value: impl Fn(&Outcome) -> f64) -> (f64, f64, f64) {
        let values: Vec<f64> = self.runs.iter().map(value).collect();
        let sum: f64 = values.iter().sum();
        let (least, most) =
            (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
        (sum / values.len().max(1) as f64, least.unwrap_or(0.0), most.unwrap_or(0.0))
    }
}

impl Sweep {
    /// Every case: fleets, then paces, then policies.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for pools in &self.pools {
            for speed in &self.speeds {
                let policies = self.policies.iter();
                cases.extend(policies.map(|policy| Case { pools: *pools, speed: *speed, policy: *policy }));
            }
        }
        cases
    }

    /// Runs a case with one seed.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run(&self, case: &Case, seed: u64, progress: impl FnMut(Progress)) -> Result<Outcome, SimError> {
        let mut settings = Settings { pools: case.pools, seed, ..self.settings.clone() };
        settings.policy.name = case.policy;
        let mut simulation = Simulation::new(settings)?;
        let pace = Pace { speed: case.speed, ..self.pace };
        let limit = self.limit.unwrap_or(u64::MAX) as usize;
        match &self.source {
            Source::File(path) => simulation.run(pace.of(Trace::open(path)?, seed).take(limit), progress),
            Source::Made(workload) => {
                let requests = workload.requests(seed)?.map(Ok);
                simulation.run(pace.of(requests, seed).take(limit), progress)
            }
        }
    }
}
