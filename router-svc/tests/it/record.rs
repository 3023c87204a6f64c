//! A router that records writes what its decisions were made from, and they come out again.

use std::time::Duration;

use armature_contracts::discovery::v1::Role;
use armature_router::adapters::record::read;
use armature_router::domain::explain::Outcome;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, chain, decode_of, request};

#[tokio::test]
async fn recorded_decisions_come_out_as_they_were_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new().await;
    for id in 1..=3 {
        rig.worker(FakeWorker::new(id), Role::Aggregated).await;
    }
    let record_dir = Some(dir.path().to_owned());
    let mut router = rig.router_with(|config| config.explain.record_dir = record_dir).await;
    let mut answered = Vec::new();
    for n in 0..5 {
        // The last one repeats the first and decides nothing.
        let n = n % 4;
        answered.push(decode_of(&router.route(request(n, 160, chain(n as u64, 10))).await.unwrap()));
    }
    let file = dir.path().join("decisions-00000001.rec");
    let decisions = loop {
        match read::decisions(&file) {
            Ok(decisions) if decisions.len() >= 4 => break decisions,
            // They are in the file a second later at most.
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    assert_eq!(decisions.len(), 4);
    let said = loop {
        let said = read::answers(&file).unwrap();
        if said.len() == 4 {
            break said;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    for ((number, inputs), answered) in decisions.iter().zip(answered) {
        let outcome = Outcome::of(inputs);
        assert_eq!(outcome.decode.unwrap().instance.0, answered);
        assert_eq!(said[&number.0], outcome.to_string());
    }
}
