//! What the frontend decides, pure and synchronous: time and randomness are arguments.

pub mod deaths;
pub mod detokenize;
pub mod digest;
pub mod flight;
pub mod leg;
pub mod member;
pub mod params;
pub mod pin;
pub mod prompt;
pub mod rendezvous;
pub mod stop;
pub mod text;
