//! The simulated model's vocabulary, and what it likes to say next.
//!
//! Token `b` below 256 is the byte `b`; then come the special tokens; any further one is reserved
//! and has a logit of -inf. The text looks like words: syllables of a consonant and a vowel, then
//! a space. Which consonant or vowel is a matter of the chain hash, so that text shows whether
//! two sequences have the same past.

use super::chain::{ChainHash, mix, scramble};

/// `<|endoftext|>`.
pub const END_OF_TEXT: u32 = 256;
/// `<|im_start|>`: opens a chat message.
pub const IM_START: u32 = 257;
/// `<|im_end|>`: closes a chat message; ends a generation.
pub const IM_END: u32 = 258;
/// The first id without a meaning, and the least size of a vocabulary.
pub const FIRST_RESERVED: u32 = 259;
/// The special tokens, from id 256.
pub(super) const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
const VOWELS: &[u8] = b"aeiou";
/// Logit of what fits: a share of `SPREAD` above `LIKELY`.
const LIKELY: f32 = 8.0;
const SPREAD: f32 = 6.0;
/// Logit of bytes that do not fit; together they have less than 1e-8 of the probability.
const UNLIKELY: f32 = -24.0;
/// Logit of the special tokens, and of an end token whose time has come.
const SPECIAL_LOGIT: f32 = -32.0;
const END_LOGIT: f32 = 40.0;

/// Logits after `token`, the last of the tokens that `hash` stands for: `vocab_size` values.
pub(super) fn logits(hash: ChainHash, token: u32, vocab_size: usize, eos_probability: f64) -> Vec<f32> {
    let mut logits = vec![f32::NEG_INFINITY; vocab_size];
    let whim = |id: u32| unit(mix(hash.0, u64::from(id)));
    for (logit, id) in logits.iter_mut().zip(0..FIRST_RESERVED) {
        let base = if id < 256 { UNLIKELY } else { SPECIAL_LOGIT };
        *logit = base + whim(id) as f32;
    }
    for byte in fitting(token, hash) {
        let id = u32::from(*byte);
        logits[usize::from(*byte)] = LIKELY + SPREAD * whim(id) as f32;
    }
    if unit(scramble(hash.0)) < eos_probability {
        logits[IM_END as usize] = END_LOGIT;
    }
    logits
}

/// The bytes that fit after `token`.
fn fitting(token: u32, hash: ChainHash) -> &'static [u8] {
    let is_in = |letters: &[u8]| u8::try_from(token).is_ok_and(|byte| letters.contains(&byte));
    if is_in(CONSONANTS) {
        return VOWELS;
    }
    // A word has two syllables on average.
    let ends_word = is_in(VOWELS) && scramble(!hash.0) & 1 == 0;
    if ends_word { b" " } else { CONSONANTS }
}

/// A number in [0, 1) of 53 random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
