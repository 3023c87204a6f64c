//! The `grpc-timeout` header: up to eight digits and a unit (`H M S m u n`).

use std::time::Duration;

use http::{HeaderName, HeaderValue};

/// Name of the header.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The largest number eight digits hold.
const MAX_VALUE: u128 = 99_999_999;

/// Parses a header value; `None` for anything the protocol does not allow.
pub fn decode(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(value * 3600),
        'M' => Duration::from_secs(value * 60),
        'S' => Duration::from_secs(value),
        'm' => Duration::from_millis(value),
        'u' => Duration::from_micros(value),
        'n' => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Writes a header value in the finest unit that fits, rounded down: a callee must never believe
/// it has longer than its caller. More than 99999999 hours are written as that.
pub fn encode(limit: Duration) -> HeaderValue {
    let nanos = limit.as_nanos();
    let units = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
        (3_600_000_000_000, 'H'),
    ];
    let fitting =
        units.into_iter().map(|(size, unit)| (nanos / size, unit)).find(|(value, _)| *value <= MAX_VALUE);
    let (value, unit) = fitting.unwrap_or((MAX_VALUE, 'H'));
    HeaderValue::try_from(format!("{value}{unit}")).expect("digits and a letter are a valid header")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_protocol_is_read() {
        assert_eq!(decode("10S"), Some(Duration::from_secs(10)));
        assert_eq!(decode("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "S", "10", "-1S", "+1S", "123456789S", "1s", "1é"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn never_longer_and_nearly_equal(seconds in 0u64..40_000_000, nanos in 0u32..1_000_000_000) {
            let limit = Duration::new(seconds, nanos);
            let read = decode(encode(limit).to_str().unwrap()).unwrap();
            prop_assert!(read <= limit);
            prop_assert!((limit - read).as_secs_f64() <= limit.as_secs_f64() * 1e-5 + 1e-9);
        }
    }
}
