//! The highest values of a vocabulary-sized vector, without sorting it.

/// Values looked at together when most of them are below the bar.
const STRIDE: usize = 32;
/// Candidates collected before the first selection, at least.
const MIN_ROOM: usize = 256;

/// The highest value; -inf for an empty slice. NaN is not looked at.
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; STRIDE];
    let (strides, rest) = values.as_chunks::<STRIDE>();
    for stride in strides {
        for (lane, value) in lanes.iter_mut().zip(stride) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    let higher = |a: f32, b: &f32| if *b > a { *b } else { a };
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, higher)
}

/// A key that sorts tokens best first: by descending value, then ascending id. -0 equals 0.
fn value_key(value: f32, token: u32) -> u64 {
    let bits = (value + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(token)
}

/// The token of a key made by [`value_key`] or the like: its low half.
pub(super) fn token_of(key: u64) -> u32 {
    key as u32
}

/// Leaves in `keys` the [`value_key`]s of the `count` highest values, in no order; fewer when fewer
/// values are above -inf.
///
/// Candidates above a bar are collected; whenever there are twice as many as wanted, a selection
/// halves them and raises the bar. Linear in the vocabulary, whatever the order of the values.
pub(super) fn highest(values: &[f32], count: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if count == 0 {
        return;
    }
    let room = count.saturating_mul(2).max(MIN_ROOM);
    let mut bar = f32::NEG_INFINITY;
    for (stride, start) in values.chunks(STRIDE).zip((0u32..).step_by(STRIDE)) {
        if !stride.iter().fold(false, |any, value| any | (*value > bar)) {
            continue;
        }
        for (value, token) in stride.iter().zip(start..) {
            // An equal value later in the vocabulary ranks lower, so it need not pass the bar.
            if *value > bar {
                keys.push(value_key(*value, token));
            }
        }
        if keys.len() >= room {
            keep_best(keys, count);
            bar = values[token_of(keys[count - 1]) as usize];
        }
    }
    if keys.len() > count {
        keep_best(keys, count);
    }
}

/// Cuts `keys` to its `count` best, the last of them in the last place. There must be more.
fn keep_best(keys: &mut Vec<u64>, count: usize) {
    keys.select_nth_unstable(count - 1);
    keys.truncate(count);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_full_sort(
            values in prop::collection::vec(
                prop_oneof![-3f32..3.0, Just(0.0), Just(-0.0), Just(1.5), Just(f32::NEG_INFINITY)], 0..2_000),
            count in 0usize..700,
            ascending: bool,
        ) {
            let mut values = values;
            if ascending {
                values.sort_by(f32::total_cmp);
            }
            let mut expected: Vec<u32> =
                (0..values.len() as u32).filter(|t| values[*t as usize] > f32::NEG_INFINITY).collect();
            expected.sort_by(|a, b| values[*b as usize].partial_cmp(&values[*a as usize]).unwrap().then(a.cmp(b)));
            expected.truncate(count);
            let mut keys = vec![7; 3];
            highest(&values, count, &mut keys);
            keys.sort_unstable();
            prop_assert_eq!(keys.into_iter().map(token_of).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn max_is_the_highest(values in prop::collection::vec(-3f32..3.0, 0..100)) {
            prop_assert_eq!(max(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
