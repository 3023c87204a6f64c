use std::path::PathBuf;

use prometheus_client::registry::Registry;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use prost::Message;

use super::format::{Decision, recorded};
use super::writer::{Recorded, Recorder};
use super::{FILES, read};
use crate::domain::explain::{DecisionNumber, Outcome};
use crate::domain::policy::decide::evaluate;
use crate::domain::policy::properties::inputs;
use crate::metrics::Metrics;

proptest! {
    #[test]
    fn a_recorded_decision_comes_out_bit_for_bit(inputs in inputs(), number: u64) {
        let bytes = recorded(DecisionNumber(number), &inputs).encode_to_vec();
        let (read, again) = Decision::decode(&bytes[..]).unwrap().read().unwrap();
        prop_assert_eq!(read.0, number);
        let (one, two) = (evaluate(&inputs), evaluate(&again));
        prop_assert_eq!(one.choice, two.choice);
        prop_assert_eq!((one.no_decode, one.no_prefill), (two.no_decode, two.no_prefill));
        for (a, b) in one.decode.iter().zip(&two.decode).chain(one.prefill.iter().zip(&two.prefill)) {
            prop_assert_eq!((a.at, a.cost.to_bits()), (b.at, b.cost.to_bits()));
            prop_assert_eq!(a.terms, b.terms);
        }
    }
}

fn files(dir: &std::path::Path, kind: &str) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == kind)).collect();
    files.sort();
    files
}

#[test]
fn files_are_rotated_within_their_bound_and_hold_inputs_apart_from_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = TestRunner::deterministic();
    let metrics = Metrics::new(&mut Registry::default());
    let most = 64 * 1024;
    let mut number = 0;
    // Two lives of a router: the second goes on with the next number of a file.
    for _ in 0..2 {
        let recorder = Recorder::start(dir.path(), most, metrics.clone()).unwrap();
        for _ in 0..200 {
            let inputs = inputs().new_tree(&mut runner).unwrap().current();
            let outcome = Outcome::of(&inputs);
            number += 1;
            recorder.record(Recorded { number: DecisionNumber(number), inputs, outcome });
        }
    }
    let taken = metrics.recorded.get();
    assert_eq!(taken + metrics.unrecorded.get(), number);
    assert!(taken >= 256, "{taken}");
    let (inputs, answers) = (files(dir.path(), "rec"), files(dir.path(), "answers"));
    assert!(inputs.len() as u64 <= FILES && inputs.len() == answers.len());
    let bytes: u64 = inputs.iter().chain(&answers).map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes <= most, "{bytes}");
    let mut compared = 0;
    for file in &inputs {
        let said = read::answers(file).unwrap();
        for (number, inputs) in read::decisions(file).unwrap() {
            assert_eq!(said.get(&number.0), Some(&Outcome::of(&inputs).to_string()));
            compared += 1;
        }
    }
    assert!(compared > 0);
}

#[test]
fn what_was_being_written_at_the_end_is_left_out_and_what_is_no_recording_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = TestRunner::deterministic();
    let inputs = inputs().new_tree(&mut runner).unwrap().current();
    let whole = recorded(DecisionNumber(1), &inputs).encode_length_delimited_to_vec();
    let file = dir.path().join("decisions-1.rec");
    let torn: Vec<_> = whole.iter().chain(&whole[..whole.len() - 1]).copied().collect();
    std::fs::write(&file, torn).unwrap();
    assert_eq!(read::decisions(&file).unwrap().len(), 1);
    assert!(read::answers(&file).unwrap().is_empty());
    std::fs::write(&file, [4, 0xff, 0xff, 0xff, 0xff]).unwrap();
    assert!(matches!(read::decisions(&file), Err(read::ReadError::Broken { place: 1, .. })));
}
