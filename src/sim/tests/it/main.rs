//! The simulator against what can be known by hand, and against itself.
#![allow(clippy::unwrap_used, missing_docs)]

mod closed_form;
mod conservation;
mod disaggregated;
mod loss;
mod report;
mod rig;
mod sample;
mod traces;
