//! One request from its text to its last delta: prepared once, then run on as many workers as it takes.

pub mod answer;
pub mod caller;
pub mod generate;
pub mod leg;
pub mod pick;
pub mod pipeline;
pub mod prepare;
