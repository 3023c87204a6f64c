//! `armature-sim`: what a fleet would have done with a workload.
//!
//! Does: replay traces and made-up workloads through the router's own domain and the workers' own scheduler, in virtual time; passes take
//! the time of the `sim` engine's model. Deterministic by seed, for thousands of workers, much faster than real time.
//!
//! Does not: compute anything, open a socket, read a clock, or have an opinion of its own on routing, admission, caching or eviction: that
//! is the services' code. The network takes no time, except for KV between workers.

mod ceiling;
mod draw;
mod events;
mod flight;
mod measure;
mod pace;
mod report;
mod request;
mod router_side;
mod settings;
mod simulation;
mod sweep;
mod timeline;
mod trace;
mod worker;
mod workload;

pub use draw::Draws;
pub use measure::{Outcome, Spread, WorkerShare};
pub use pace::{Pace, Paced};
pub use report::{Report, html, table};
pub use request::{Piece, Prompt, SimRequest, Text};
pub use settings::{InvalidSettings, Kill, MAX_WORKERS, Machine, Pools, Settings, Slo};
pub use simulation::{Progress, SimError, Simulation};
pub use sweep::{Case, CaseOutcome, Source, Sweep};
pub use timeline::Bucket;
pub use trace::{Format, Trace, TraceError};
pub use workload::{InvalidWorkload, Sessions, Workload};
