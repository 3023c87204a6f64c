//! Philox4x32-10, a counter-based random number generator.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
//! section 4.3 and table 2. It passes BigCrush; a block is about 20 multiplications.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key each round: the golden ratio and sqrt(3) - 1.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The block of 128 random bits that `counter` names under `key`.
pub(super) fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let (low0, high0) = multiply(MULTIPLIERS[0], counter[0]);
        let (low1, high1) = multiply(MULTIPLIERS[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

fn multiply(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    (product as u32, (product >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (`kat_vectors`, philox4x32 with 10 rounds).
    #[test]
    fn known_answers() {
        let answer = philox4x32_10([0; 4], [0; 2]);
        assert_eq!(answer, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let answer = philox4x32_10([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(answer, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let answer = philox4x32_10(pi, [0xa409_3822, 0x299f_31d0]);
        assert_eq!(answer, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
