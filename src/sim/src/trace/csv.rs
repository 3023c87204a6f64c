//! A line of a trace in CSV: timestamp, input tokens, output tokens; further columns are not looked at.

use jiff::civil::DateTime;

use super::Record;

/// `None` for a line of column names, which only the first one can be.
pub(super) fn record(text: &str, is_first: bool) -> Result<Option<Record>, String> {
    let mut columns = text.split(',').map(|column| column.trim().trim_matches('"'));
    let (Some(timestamp), Some(input), Some(output)) = (columns.next(), columns.next(), columns.next())
    else {
        return Err("it has fewer than three columns: timestamp, input tokens, output tokens".to_owned());
    };
    if is_first && milliseconds(timestamp).is_none() && input.parse::<u64>().is_err() {
        return Ok(None);
    }
    let timestamp = milliseconds(timestamp)
        .ok_or_else(|| format!("{timestamp:?} is neither milliseconds nor a date and time"))?;
    let tokens = |column: &str| column.parse().map_err(|_| format!("{column:?} is not a number of tokens"));
    Ok(Some(Record { timestamp, input: tokens(input)?, output: tokens(output)?, ids: Vec::new() }))
}

fn milliseconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let at: DateTime = text.parse().ok()?;
    let since = at.duration_since(jiff::civil::date(2000, 1, 1).at(0, 0, 0, 0));
    Some(since.as_secs_f64() * 1e3)
}
