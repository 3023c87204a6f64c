//! A line of a Mooncake trace.

use serde::Deserialize;

use super::Record;

/// Tokens that one id of `hash_ids` stands for.
pub(super) const ID_TOKENS: u64 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

pub(super) fn record(text: &str) -> Result<Record, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let wanted = line.input_length.div_ceil(ID_TOKENS);
    if line.hash_ids.len() as u64 != wanted {
        return Err(format!(
            "{} hash_ids for an input_length of {}; one for each {ID_TOKENS} tokens would be {wanted}",
            line.hash_ids.len(),
            line.input_length
        ));
    }
    Ok(Record {
        timestamp: line.timestamp,
        input: line.input_length,
        output: line.output_length,
        ids: line.hash_ids,
    })
}
