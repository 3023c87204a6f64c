//! The parts below the scheduler: prefix cache, event log and its publisher, step model, reservations.

mod events;
mod eviction;
mod publisher;
mod reservations;
mod step_model;
