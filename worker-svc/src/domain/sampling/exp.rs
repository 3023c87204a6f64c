//! e^x for x <= 0 in f32: the same bits on every machine, and vector code on all of them.
//!
//! The platform's `expf` differs between libm versions and, by CPU dispatch, between machines.
//! With n = round(x / ln 2) and r = x - n ln 2, |r| <= ln 2 / 2: e^x = 2^n e^r, e^r by the
//! polynomial of Cephes `expf` (S. Moshier). Only additions and multiplications, which IEEE 754
//! rounds exactly, and which the compiler neither reorders nor fuses. Relative error below 2^-22.

/// Everything below is as unlikely: e^-87 is the last normal f32.
const LOWEST: f32 = -87.0;
/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the first of which has 9 significant bits: n * LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x. Anything below -87, and NaN, gives e^-87.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x > LOWEST { x } else { LOWEST };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e_r = p * (r * r) + r + 1.0;
    // n in the low bits of `rounded` becomes a change of the exponent.
    f32::from_bits(e_r.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn landmarks() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        let lowest = exp(LOWEST);
        assert!(lowest > 0.0 && lowest < 2e-38);
        for x in [-1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(x), lowest);
        }
    }

    /// Frozen: these bits decide tokens.
    #[test]
    fn golden_bits() {
        let bits = [-0.1f32, -1.0, -2.5, -10.0, -20.0].map(|x| exp(x).to_bits());
        assert_eq!(bits, GOLDEN);
    }
    const GOLDEN: [u32; 5] = [1_063_756_653, 1_052_531_378, 1_034_427_438, 943_614_926, 822_977_587];

    proptest! {
        #[test]
        fn is_within_the_stated_error(x in LOWEST..=0.0f32) {
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - exact).abs() / exact;
            prop_assert!(relative < 2f64.powi(-22), "{x}: {relative:e}");
        }
    }
}
