//! Small fleets and hand-made workloads.

use std::time::Duration;

use armature_router::domain::policy::PolicyKind;
use armature_sim::{Machine, Outcome, Piece, Pools, Prompt, Settings, SimRequest, Simulation, Text};

/// Blocks of a worker's pool here.
pub(crate) const BLOCKS: usize = 200;

pub(crate) fn ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}

/// A request of one text.
pub(crate) fn request(at: Duration, text: u64, tokens: u32, output: u32) -> SimRequest {
    let prompt = Prompt(vec![Piece { text: Text(text), tokens }]);
    SimRequest { at, prompt, answer: Text(1 << 40 | text << 20 | at.as_millis() as u64), output }
}

/// Workers with pools of [`BLOCKS`] blocks of 64 tokens.
pub(crate) fn settings(pools: Pools, policy: PolicyKind) -> Settings {
    let mut settings =
        Settings { pools, machine: Machine { blocks: BLOCKS, ..Machine::default() }, ..Settings::default() };
    settings.policy.name = policy;
    settings
}

/// Runs to the end, and looks that nothing is left.
pub(crate) fn run(settings: Settings, requests: &[SimRequest]) -> Outcome {
    let mut simulation = Simulation::new(settings).unwrap();
    let outcome = simulation.run(requests.iter().cloned().map(Ok), |_| {}).unwrap();
    assert_eq!(simulation.audit(), Ok(()));
    assert_eq!(outcome.finished + outcome.refused, outcome.requests, "every request ends once");
    outcome
}

/// P(T): milliseconds of prefilling T tokens in one pass.
pub(crate) fn prefill(tokens: f64) -> f64 {
    4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142
}

/// D: milliseconds of a decode step with so many blocks in use.
pub(crate) fn decode(blocks: f64) -> f64 {
    let load = blocks / BLOCKS as f64;
    -25.74 * load * load + 54.01 * load + 5.74
}

/// Equal to a nanosecond for each pass.
pub(crate) fn assert_ms(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-4, "{value} ms instead of {expected}");
}
