//! What sampling gives: one token with its log-probabilities.

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// Its natural log-probability in the model's raw distribution.
    pub logprob: f32,
    /// The most likely tokens with their natural log-probabilities, best first; empty unless asked for.
    pub top: Vec<(u32, f32)>,
}
