//! The parts below the scheduler: prefix cache, event log, step model, reservations.

mod events;
mod eviction;
mod reservations;
mod step_model;
