//! How long a step takes, fitted from the steps that were.
//!
//! ```text
//! t(step) = c0 + c1 * P + c2 * A + c3 * D        seconds
//!   P = prefill tokens of the step
//!   A = attention work: sum over all computed tokens of the positions each attends to
//!       (a chunk of T tokens from position s: T*s + T*(T+1)/2; a decode row at position s: s+1)
//!   D = decode rows
//! ```
//!
//! The coefficients minimise the squared error over past steps, each weighted by `forgetting^age`,
//! plus a weak pull towards the prior; none is ever negative, so that the model is monotone in
//! each term and a chunk that fits is not made to fit by a longer context. An observation that is
//! no time (zero, or beyond `max_step`) is not used.

use std::time::Duration;

/// Work of a step, in the terms of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepWork {
    /// Tokens computed in prefill chunks.
    pub prefill_tokens: u64,
    /// Positions attended to, summed over all computed tokens.
    pub attention: u64,
    /// Decode rows.
    pub decode_rows: u64,
}

impl StepWork {
    /// Adds a prefill chunk of `tokens` tokens from position `start`.
    pub fn add_prefill(&mut self, start: usize, tokens: usize) {
        let (start, tokens) = (start as u64, tokens as u64);
        self.prefill_tokens += tokens;
        self.attention += tokens * start + tokens * (tokens + 1) / 2;
    }

    /// Adds a decode row at position `position`.
    pub fn add_decode(&mut self, position: usize) {
        self.decode_rows += 1;
        self.attention += position as u64 + 1;
    }
}

/// Coefficients of the step model, in seconds; all finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepCoefficients {
    /// Per step.
    pub constant: f64,
    /// Per prefill token.
    pub prefill_token: f64,
    /// Per position attended to.
    pub attention: f64,
    /// Per decode row.
    pub decode_row: f64,
}

/// Settings of the step model.
#[derive(Debug, Clone, PartialEq)]
pub struct StepModelConfig {
    /// How long a step should take when there is prefill to do.
    pub target: Duration,
    /// Weight of a step relative to the one after it, between 0 and 1.
    pub forgetting: f64,
    /// Longest credible step; a longer one (a stopped process, a debugger) is not learned from.
    pub max_step: Duration,
    /// What is believed before the first step.
    pub prior: StepCoefficients,
}

impl Default for StepModelConfig {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(100),
            forgetting: 0.98,
            max_step: Duration::from_secs(60),
            prior: StepCoefficients {
                constant: 1e-3,
                prefill_token: 1e-3,
                attention: 1e-8,
                decode_row: 1e-3,
            },
        }
    }
}

const TERMS: usize = 4;

/// Typical size of each term: the fit works on terms divided by these, so that its matrix is well
/// conditioned and one pull towards the prior suits all.
const SCALE: [f64; TERMS] = [1.0, 256.0, 262_144.0, 32.0];

/// Weight of the prior against one observation.
const PRIOR_WEIGHT: f64 = 1e-3;

/// The fitted model.
#[derive(Debug, Clone)]
pub struct StepModel {
    config: StepModelConfig,
    /// Weighted sums of x xT and x y over past steps, x scaled.
    xx: [[f64; TERMS]; TERMS],
    xy: [f64; TERMS],
    coefficients: StepCoefficients,
}

fn sane(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1e6) } else { 0.0 }
}

impl StepModel {
    /// The prior.
    pub fn new(mut config: StepModelConfig) -> Self {
        config.forgetting =
            if config.forgetting.is_finite() { config.forgetting.clamp(0.5, 1.0) } else { 0.98 };
        let prior = config.prior;
        config.prior = StepCoefficients {
            constant: sane(prior.constant),
            prefill_token: sane(prior.prefill_token),
            attention: sane(prior.attention),
            decode_row: sane(prior.decode_row),
        };
        let coefficients = config.prior;
        Self { config, xx: [[0.0; TERMS]; TERMS], xy: [0.0; TERMS], coefficients }
    }

    /// The coefficients at present.
    pub fn coefficients(&self) -> StepCoefficients {
        self.coefficients
    }

    /// Learns from a step.
    pub fn observe(&mut self, work: StepWork, elapsed: Duration) {
        if elapsed.is_zero() || elapsed > self.config.max_step || work == StepWork::default() {
            return;
        }
        let x = terms(work);
        let y = elapsed.as_secs_f64();
        for row in 0..TERMS {
            for column in 0..TERMS {
                self.xx[row][column] = self.xx[row][column] * self.config.forgetting + x[row] * x[column];
            }
            self.xy[row] = self.xy[row] * self.config.forgetting + x[row] * y;
        }
        self.coefficients = self.fit();
    }

    /// Least squares with the pull towards the prior; the most negative term is taken out until
    /// none is negative.
    fn fit(&self) -> StepCoefficients {
        let prior = self.config.prior;
        let prior = [
            prior.constant * SCALE[0],
            prior.prefill_token * SCALE[1],
            prior.attention * SCALE[2],
            prior.decode_row * SCALE[3],
        ];
        let mut matrix = self.xx;
        let mut right = self.xy;
        for term in 0..TERMS {
            matrix[term][term] += PRIOR_WEIGHT;
            right[term] += PRIOR_WEIGHT * prior[term];
        }
        let mut used = [true; TERMS];
        loop {
            let solution = solve(matrix, right, used);
            let worst = (0..TERMS)
                .filter(|term| used[*term] && solution[*term] < 0.0)
                .min_by(|a, b| solution[*a].total_cmp(&solution[*b]));
            match worst {
                Some(term) => used[term] = false,
                None => {
                    return StepCoefficients {
                        constant: sane(solution[0] / SCALE[0]),
                        prefill_token: sane(solution[1] / SCALE[1]),
                        attention: sane(solution[2] / SCALE[2]),
                        decode_row: sane(solution[3] / SCALE[3]),
                    };
                }
            }
        }
    }

    /// Expected seconds of a step.
    pub fn seconds(&self, work: StepWork) -> f64 {
        let c = self.coefficients;
        c.constant
            + c.prefill_token * work.prefill_tokens as f64
            + c.attention * work.attention as f64
            + c.decode_row * work.decode_rows as f64
    }

    /// How many prefill tokens from position `start` fit into the step beside `work`, so that it
    /// takes about the target: at most `most`. The largest T with
    /// `t(work) + c1*T + c2*(T*start + T*(T+1)/2) <= target`; 0 when none fits.
    pub fn chunk_budget(&self, work: StepWork, start: usize, most: usize) -> usize {
        let left = self.config.target.as_secs_f64() - self.seconds(work);
        if left.is_nan() || left <= 0.0 {
            return 0;
        }
        let c = self.coefficients;
        let square = c.attention / 2.0;
        let linear = c.prefill_token + c.attention * (start as f64 + 0.5);
        // The root of square*T^2 + linear*T = left in the form that does not cancel.
        let root = 2.0 * left / (linear + (linear * linear + 4.0 * square * left).sqrt());
        if root.is_finite() && root < most as f64 { root as usize } else { most }
    }
}

fn terms(work: StepWork) -> [f64; TERMS] {
    [
        1.0 / SCALE[0],
        work.prefill_tokens as f64 / SCALE[1],
        work.attention as f64 / SCALE[2],
        work.decode_rows as f64 / SCALE[3],
    ]
}

/// Solves the symmetric positive definite system restricted to the `used` terms by Gaussian
/// elimination with pivoting; the others are 0.
fn solve(mut matrix: [[f64; TERMS]; TERMS], mut right: [f64; TERMS], used: [bool; TERMS]) -> [f64; TERMS] {
    for term in 0..TERMS {
        if !used[term] {
            matrix.iter_mut().for_each(|row| row[term] = 0.0);
            matrix[term] = [0.0; TERMS];
            matrix[term][term] = 1.0;
            right[term] = 0.0;
        }
    }
    for column in 0..TERMS {
        let pivot = (column..TERMS)
            .max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()))
            .unwrap_or(column);
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let eliminating = matrix[column];
        for row in column + 1..TERMS {
            let factor = matrix[row][column] / eliminating[column];
            for (value, other) in matrix[row].iter_mut().zip(eliminating) {
                *value -= factor * other;
            }
            right[row] -= factor * right[column];
        }
    }
    let mut solution = [0.0; TERMS];
    for row in (0..TERMS).rev() {
        let known: f64 = (row + 1..TERMS).map(|column| matrix[row][column] * solution[column]).sum();
        let value = (right[row] - known) / matrix[row][row];
        solution[row] = if value.is_finite() { value } else { 0.0 };
    }
    solution
}
