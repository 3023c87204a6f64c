//! What a sweep found, as a table, as JSON and as a page.

mod html;
mod plot;
mod table;

use serde::{Deserialize, Serialize};

use crate::settings::{Settings, Slo};
use crate::sweep::CaseOutcome;

pub use html::html;
pub use table::table;

/// Everything that is reported of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// What each worker is, in words.
    pub machine: String,
    /// Longest time to the first token of a good answer, milliseconds.
    pub slo_ttft_ms: f64,
    /// Longest mean time between its tokens, milliseconds.
    pub slo_itl_ms: f64,
    /// The cases, in the order in which they were asked for.
    pub cases: Vec<CaseOutcome>,
}

impl Report {
    /// A report of these cases.
    pub fn new(workload: String, settings: &Settings, cases: Vec<CaseOutcome>) -> Self {
        let Slo { ttft, itl } = settings.slo;
        Self {
            workload,
            machine: machine(settings),
            slo_ttft_ms: ttft.as_secs_f64() * 1e3,
            slo_itl_ms: itl.as_secs_f64() * 1e3,
            cases,
        }
    }
}

fn machine(settings: &Settings) -> String {
    let machine = &settings.machine;
    format!(
        "{} blocks of {} tokens, {} tokens and {} sequences in a pass, eviction {}",
        machine.blocks,
        machine.timing.block_size,
        machine.max_batched_tokens,
        machine.max_running,
        machine.eviction.name(),
    )
}
