//! How long a worker's engine needs: the time of prefilling, and of a decode step.
//!
//! From the card, with T uncached tokens in one pass and load l = active blocks / capacity:
//!
//! ```text
//! P(T) = a2 T^2 + a1 T + a0          D(l) = d2 l^2 + d1 l + d0
//! ```
//!
//! From what workers of its type report ([`super::fit`]), with A positions attended to and n rows:
//!
//! ```text
//! P(T) = base + p T + c T (T + 1) / 2          D(l, n) = base + d n + c A,    A = l * tokens of the pool
//! ```
//!
//! Where there is a fit with the share s, the time is `s * fit + (1 - s) * card`.
//!
//! Service time of u uncached tokens alone, with C the token budget of a pass: `S(u) = floor(u/C) P(C) + P(u mod C)`.

use super::fit::{StepFit, Trusted};
use super::units::{Millis, Tokens};

/// Token budget of a pass when the card names none.
pub const DEFAULT_PASS_TOKENS: u64 = 8192;

/// Coefficients of the prior, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPrior {
    /// a2, a1, a0.
    pub prefill: [f64; 3],
    /// d2, d1, d0.
    pub decode: [f64; 3],
    /// Per token of KV moved between workers.
    pub transfer_per_token: Millis,
}

impl Default for StepPrior {
    /// Dynamo's published timing model of an 8-billion-parameter model on one H100; only ratios between workers matter much.
    fn default() -> Self {
        Self {
            prefill: [4.21e-7, 0.01518, 16.5],
            decode: [-25.74, 54.01, 5.74],
            transfer_per_token: Millis(0.001),
        }
    }
}

/// The step times of one worker.
#[derive(Debug, Clone, Copy)]
pub struct StepCost {
    prior: StepPrior,
    fit: StepFit,
    pass_tokens: u64,
    pool: Tokens,
}

impl StepCost {
    /// Of a worker with a token budget of `pass_tokens` (0: the default) per pass.
    pub fn new(prior: StepPrior, pass_tokens: u32) -> Self {
        let pass_tokens = if pass_tokens == 0 { DEFAULT_PASS_TOKENS } else { u64::from(pass_tokens) };
        Self { prior, fit: StepFit::default(), pass_tokens, pool: Tokens(0) }
    }

    /// As measured, with a pool of so many tokens.
    #[must_use]
    pub fn fitted(self, fit: StepFit, pool: Tokens) -> Self {
        Self { fit, pool, ..self }
    }

    /// P(T): one pass over `tokens` uncached tokens.
    pub fn pass(&self, tokens: u64) -> Millis {
        let t = tokens as f64;
        let [a2, a1, a0] = self.prior.prefill;
        blended(a2 * t * t + a1 * t + a0, self.fit.prefill, |fit| fit.model.pass(t))
    }

    /// S(u); zero for nothing to do.
    pub fn service(&self, uncached: Tokens) -> Millis {
        if uncached.0 == 0 {
            return Millis(0.0);
        }
        let (full, rest) = (uncached.0 / self.pass_tokens, uncached.0 % self.pass_tokens);
        let rest = if rest == 0 { 0.0 } else { self.pass(rest).0 };
        Millis(full as f64 * self.pass(self.pass_tokens).0 + rest)
    }

    /// Price of one more prefilled token: `(P(C) - P(0)) / C`.
    pub fn per_token(&self) -> Millis {
        let slope = (self.pass(self.pass_tokens).0 - self.pass(0).0) / self.pass_tokens as f64;
        sane(slope)
    }

    /// D: a decode step of `rows` sequences at `load` (active blocks / capacity, taken between 0 and 1).
    pub fn decode(&self, load: f64, rows: u32) -> Millis {
        let l = load.clamp(0.0, 1.0);
        let [d2, d1, d0] = self.prior.decode;
        let positions = l * self.pool.0 as f64;
        blended(d2 * l * l + d1 * l + d0, self.fit.decode, |fit| fit.model.step(f64::from(rows), positions))
    }

    /// Moving the KV of `tokens` between workers.
    pub fn transfer(&self, tokens: Tokens) -> Millis {
        sane(self.prior.transfer_per_token.0 * tokens.0 as f64)
    }
}

/// A time by the prior and, where there is one, by the fit; without one it is the prior's to the bit.
fn blended(prior: f64, fit: Option<Trusted>, time: impl Fn(&Trusted) -> f64) -> Millis {
    let prior = sane(prior);
    match &fit {
        None => prior,
        Some(fit) => sane(fit.share * time(fit) + (1.0 - fit.share) * prior.0),
    }
}

/// Coefficients come from the network: a time is finite and not negative whatever they are.
fn sane(time: f64) -> Millis {
    Millis(if time.is_finite() { time.max(0.0) } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::super::fit::StepModel;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fit_has_its_share() {
        let model =
            StepModel { base: 2.0, prefill_token: 0.5, decode_row: 0.1, position: 1e-6, observations: 9 };
        let trusted = Some(Trusted { model, share: 0.25 });
        let prior = StepCost::new(StepPrior::default(), 1000);
        let pool = Tokens(1_000_000);
        let both = prior.fitted(StepFit { prefill: trusted, decode: trusted }, pool);
        let expected = 0.75 * prior.pass(500).0 + 0.25 * (2.0 + 250.0 + 1e-6 * 125_250.0);
        assert!((both.pass(500).0 - expected).abs() < 1e-9);
        let expected = 0.75 * prior.decode(0.5, 7).0 + 0.25 * (2.0 + 0.7 + 0.5);
        assert!((both.decode(0.5, 7).0 - expected).abs() < 1e-9);
        // Each side by itself.
        let prefill = prior.fitted(StepFit { prefill: trusted, decode: None }, pool);
        assert_eq!((prefill.pass(500), prefill.decode(0.5, 7)), (both.pass(500), prior.decode(0.5, 7)));
    }

    #[test]
    fn service_time_is_the_sum_of_its_passes() {
        let cost = StepCost::new(StepPrior::default(), 1000);
        let expected = 2.0 * cost.pass(1000).0 + cost.pass(500).0;
        assert!((cost.service(Tokens(2500)).0 - expected).abs() < 1e-9);
        assert_eq!(cost.service(Tokens(0)), Millis(0.0));
        assert_eq!(cost.service(Tokens(1000)), cost.pass(1000));
    }

    proptest! {
        #[test]
        fn times_are_finite_and_not_negative(
            a in prop::array::uniform3(any::<f64>()), d in prop::array::uniform3(any::<f64>()),
            tokens in 0u64..1_000_000, load in any::<f64>(), pass: u32,
        ) {
            let prior = StepPrior { prefill: a, decode: d, transfer_per_token: Millis(a[0]) };
            let cost = StepCost::new(prior, pass);
            for time in [cost.service(Tokens(tokens)), cost.decode(load, pass), cost.transfer(Tokens(tokens)), cost.per_token()] {
                prop_assert!(!time.0.is_nan() && time.0 >= 0.0);
            }
        }

        #[test]
        fn more_tokens_never_take_less_time(u in 0u64..200_000, more in 0u64..5_000) {
            // Within one pass; a boundary may save the constant of a pass that is nearly empty.
            let cost = StepCost::new(StepPrior::default(), 1 << 20);
            prop_assert!(cost.service(Tokens(u)).0 <= cost.service(Tokens(u + more)).0);
        }
    }
}
