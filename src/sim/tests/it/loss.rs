//! Workers that are lost.

use armature_router::domain::policy::PolicyKind;
use armature_sim::{Kill, Pools, Settings, SimRequest};

use crate::rig::{self, ms, request};

fn load() -> Vec<SimRequest> {
    (0..80).map(|n| request(ms(n as f64 * 10.0), n % 9, 400, 50)).collect()
}

fn settings(kills: Vec<Kill>) -> Settings {
    Settings { kills, ..rig::settings(Pools::Aggregated(3), PolicyKind::Kv) }
}

#[test]
fn streams_of_a_lost_worker_go_on_elsewhere_and_are_whole() {
    let calm = rig::run(settings(Vec::new()), &load());
    let loss = rig::run(settings(vec![Kill { at: ms(400.0), worker: 1 }]), &load());
    assert_eq!((calm.migrated, calm.finished, loss.finished, loss.refused), (0, 80, 80, 0));
    assert!(loss.migrated > 0);
    assert_eq!(loss.output_tokens, calm.output_tokens, "no token is lost or told twice");
    assert!(loss.e2e.mean > calm.e2e.mean);
}

#[test]
fn with_the_last_worker_everything_is_refused() {
    let kills = (0..3).map(|worker| Kill { at: ms(300.0), worker }).collect();
    let outcome = rig::run(settings(kills), &load());
    assert!(outcome.refused > 0 && outcome.finished < 80, "{outcome:?}");
}
