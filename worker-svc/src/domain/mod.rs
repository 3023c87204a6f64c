//! The worker's pure core: no I/O, clock, async or entropy. Time and randomness
//! are arguments, so that property tests and simulations run the very code that
//! serves.

pub mod ids;
