//! The step model learns true coefficients, stays monotone, and survives garbage.

use std::time::Duration;

use armature_worker::domain::step_model::{StepCoefficients, StepModel, StepModelConfig, StepWork};
use proptest::prelude::*;

fn prefill(start: usize, tokens: usize, decodes: usize) -> StepWork {
    let mut work = StepWork::default();
    if tokens > 0 {
        work.add_prefill(start, tokens);
    }
    (0..decodes).for_each(|row| work.add_decode(100 + row));
    work
}

fn seconds(c: StepCoefficients, work: StepWork) -> f64 {
    c.constant
        + c.prefill_token * work.prefill_tokens as f64
        + c.attention * work.attention as f64
        + c.decode_row * work.decode_rows as f64
}

#[test]
fn attention_work_is_the_sum_of_positions_attended_to() {
    let mut chunked = StepWork::default();
    chunked.add_prefill(10, 7);
    chunked.add_decode(17);
    let each: u64 = (10..18).map(|position| position + 1).sum();
    assert_eq!(chunked, StepWork { prefill_tokens: 7, attention: each, decode_rows: 1 });
}

#[test]
fn a_changed_engine_is_learned_anew() {
    let mut model = StepModel::new(StepModelConfig::default());
    for speed in [1e-3, 4e-3] {
        for step in 0..600 {
            let work = prefill(step % 7 * 64, 16 + step % 5 * 32, step % 9);
            let truth =
                StepCoefficients { constant: 2e-3, prefill_token: speed, attention: 1e-8, decode_row: 5e-4 };
            model.observe(work, Duration::from_secs_f64(seconds(truth, work)));
        }
        let learned = model.coefficients().prefill_token;
        assert!((learned / speed - 1.0).abs() < 0.05, "{learned} of {speed}");
    }
}

proptest! {
    #[test]
    fn predictions_converge_to_the_truth(
        constant in 1e-4..2e-2f64,
        token in 1e-5..1e-2f64,
        attention in 1e-9..1e-6f64,
        row in 1e-5..1e-2f64,
    ) {
        let truth = StepCoefficients { constant, prefill_token: token, attention, decode_row: row };
        let mut model = StepModel::new(StepModelConfig { max_step: Duration::from_secs(1000), ..StepModelConfig::default() });
        for step in 0..400usize {
            let work = prefill(step % 11 * 200, step % 6 * 50, step % 13);
            model.observe(work, Duration::from_secs_f64(seconds(truth, work)));
        }
        for work in [prefill(0, 128, 4), prefill(1500, 64, 0), prefill(0, 0, 12)] {
            let (expected, got) = (seconds(truth, work), model.seconds(work));
            prop_assert!((got - expected).abs() < 0.05 * expected + 1e-3, "{} of {}", got, expected);
        }
    }

    #[test]
    fn garbage_never_breaks_it(
        steps in proptest::collection::vec((0..100_000usize, 0..10_000usize, 0..300usize, any::<u32>(), 0..4u8), 0..80),
        start in 0..100_000usize,
        most in 1..10_000usize,
    ) {
        let mut model = StepModel::new(StepModelConfig::default());
        for (start, tokens, decodes, elapsed, unit) in steps {
            let elapsed = match unit {
                0 => Duration::from_nanos(u64::from(elapsed)),
                1 => Duration::from_micros(u64::from(elapsed)),
                2 => Duration::from_millis(u64::from(elapsed)),
                _ => Duration::MAX,
            };
            model.observe(prefill(start, tokens, decodes), elapsed);
            let c = model.coefficients();
            for value in [c.constant, c.prefill_token, c.attention, c.decode_row] {
                prop_assert!(value.is_finite() && value >= 0.0);
            }
        }
        let beside = prefill(0, 0, 3);
        let budget = model.chunk_budget(beside, start, most);
        prop_assert!(budget <= most);
        prop_assert!(model.chunk_budget(beside, start + 1000, most) <= budget, "a longer context fits no more");
        prop_assert!(model.chunk_budget(prefill(0, 64, 9), start, most) <= budget, "nor does more work beside");
        let with = |tokens: usize| {
            let mut work = beside;
            work.add_prefill(start, tokens);
            model.seconds(work)
        };
        if budget > 0 {
            prop_assert!(with(budget) <= 0.1 * 1.000001, "the budget keeps the target");
        }
        if budget > 0 && budget < most {
            prop_assert!(with(budget + 1) > 0.1 * 0.999999, "and is the largest that does");
        }
    }
}
