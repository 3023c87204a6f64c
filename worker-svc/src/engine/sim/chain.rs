//! The chain hash: a sequence of tokens as one number.
//!
//! `h(-1)` comes from the model digest; `h(p) = mix(h(p-1), token(p))`. It stands for the state that a
//! real model's attention builds from all tokens up to a position.

/// Increment of SplitMix64: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Chain hash of the tokens up to a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainHash(pub(super) u64);

impl ChainHash {
    /// Of no tokens, for a model.
    pub(super) fn root(model_digest: &[u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *model_digest;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Of one token more.
    pub(super) fn then(self, token: u32) -> Self {
        Self(mix(self.0, u64::from(token)))
    }
}

/// Two numbers into one that looks random: not symmetric, every bit depends on every bit.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    scramble(a ^ scramble(b))
}

/// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014, with the constants of D. Stafford's variant 13).
pub(super) fn scramble(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 for seed 1234567, as published on Rosetta Code.
    #[test]
    fn known_answers() {
        let outputs = [0, 1, 2].map(|n| scramble(1_234_567u64.wrapping_add(GOLDEN.wrapping_mul(n))));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn order_matters() {
        let root = ChainHash::root(&[7; 32]);
        assert_ne!(root.then(1).then(2), root.then(2).then(1));
    }
}
