//! An OpenAI-compatible engine of somebody else, as pure rules: what it is asked, what it says, and what is believed of its load.
//!
//! Does not: connect, wait, or know a clock; `crate::adapters::openai` does.

pub mod ask;
pub mod chunk;
pub mod dialect;
pub mod facts;
pub mod load;
pub mod progress;
pub mod retokenize;
pub mod sse;
pub mod table;
