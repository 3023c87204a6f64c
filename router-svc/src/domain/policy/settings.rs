//! Weights of the cost: those of the router, and what one request may change of them.

use super::PolicyKind;
use crate::domain::units::{Millis, Tokens};

/// Weights of the cost, the same for every decision of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How workers are scored.
    pub policy: PolicyKind,
    /// kappa: price of duplicating blocks that exist elsewhere, in units of computing them.
    pub kappa: f64,
    /// kappa of the prefill pool.
    pub kappa_prefill: f64,
    /// eta: weight of decode time against time to first token.
    pub eta: f64,
    /// Weight of the eviction-age term of the prefill pool.
    pub eviction_age: f64,
    /// Price of a millisecond for which a report is overdue.
    pub staleness: f64,
    /// Share of the transfer time that each step of the topology adds.
    pub topology_penalty: f64,
    /// Opening a transfer connection to a worker that is no warm peer.
    pub cold_transfer: Millis,
    /// E_o: output tokens of a request that names no expectation.
    pub expected_output: Tokens,
    /// Whether decode workers may prefill.
    pub local_prefill: bool,
    /// Whether a READY prefill worker is used whatever it costs.
    pub prefer_remote: bool,
    /// Whether prefill and decode workers of different deployment revisions may work together.
    pub mix_revisions: bool,
    /// Softens the choice: a worker is drawn with a probability in proportion to `exp(-cost / temperature)`. Zero: the least cost.
    pub temperature: Millis,
}

impl Default for Settings {
    /// As tuned in simulation on public traces: kappa 2 (1 in a prefill pool), eta 0.05.
    fn default() -> Self {
        Self {
            policy: PolicyKind::Kv,
            kappa: 2.0,
            kappa_prefill: 1.0,
            eta: 0.05,
            eviction_age: 2.0,
            staleness: 1.0,
            topology_penalty: 0.5,
            cold_transfer: Millis(2.0),
            expected_output: Tokens(300),
            local_prefill: true,
            prefer_remote: false,
            mix_revisions: false,
            temperature: Millis(0.0),
        }
    }
}

/// Most of each weight that a request may ask for; less than nothing is nothing.
const MAX: Overrides = Overrides { kappa: Some(100.0), eta: Some(10.0), temperature: Some(Millis(60_000.0)) };

/// Weights that one request asks for instead of the router's.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Overrides {
    /// kappa, of both pools.
    pub kappa: Option<f64>,
    /// eta.
    pub eta: Option<f64>,
    /// Temperature.
    pub temperature: Option<Millis>,
}

impl Overrides {
    /// Taken into 0 to 100 (kappa), 0 to 10 (eta), 0 to 60,000 ms (temperature). What is not a number is no override.
    #[must_use]
    pub fn clamped(self) -> Self {
        let within = |value: Option<f64>, most: Option<f64>| match value {
            Some(value) if !value.is_nan() => Some(value.clamp(0.0, most.unwrap_or(0.0))),
            _ => None,
        };
        let time = |value: Option<Millis>| value.map(|value| value.0);
        Self {
            kappa: within(self.kappa, MAX.kappa),
            eta: within(self.eta, MAX.eta),
            temperature: within(time(self.temperature), time(MAX.temperature)).map(Millis),
        }
    }
}

impl Settings {
    /// With a request's own weights, clamped.
    #[must_use]
    pub fn with(self, overrides: Overrides) -> Self {
        let Overrides { kappa, eta, temperature } = overrides.clamped();
        Self {
            kappa: kappa.unwrap_or(self.kappa),
            kappa_prefill: kappa.unwrap_or(self.kappa_prefill),
            eta: eta.unwrap_or(self.eta),
            temperature: temperature.unwrap_or(self.temperature),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_taken_into_their_range_whatever_they_are() {
        let of = |value: f64| {
            let asked = Overrides { kappa: Some(value), eta: Some(value), temperature: Some(Millis(value)) };
            let got = Settings::default().with(asked);
            (got.kappa, got.kappa_prefill, got.eta, got.temperature.0)
        };
        assert_eq!(of(0.5), (0.5, 0.5, 0.5, 0.5));
        assert_eq!(of(f64::INFINITY), (100.0, 100.0, 10.0, 60_000.0));
        assert_eq!(of(9.3e18), (100.0, 100.0, 10.0, 60_000.0));
        assert_eq!(of(-1.0), (0.0, 0.0, 0.0, 0.0));
        assert_eq!(of(f64::NEG_INFINITY), (0.0, 0.0, 0.0, 0.0));
        assert_eq!(of(f64::NAN), (2.0, 1.0, 0.05, 0.0));
        assert_eq!(Settings::default().with(Overrides::default()), Settings::default());
    }
}
