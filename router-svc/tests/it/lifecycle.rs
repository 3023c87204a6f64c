//! READY, drain, and several routers.

use armature_contracts::discovery::v1::{InstanceStatus, Role};
use armature_contracts::error::Reason;
use armature_svc_kit::address::Address;
use std::time::Duration;
use tokio::time::Instant;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, request};

#[tokio::test(start_paused = true)]
async fn ready_waits_for_first_reports_but_not_for_ever() {
    let mut rig = Rig::new().await;
    rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    rig.worker(FakeWorker::new(2).silent(), Role::Aggregated).await;
    let began = Instant::now();
    let mut router = rig.router().await;
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert!(router.route(request(1, 10, vec![])).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn ready_comes_at_once_when_all_have_reported() {
    let mut rig = Rig::new().await;
    rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let began = Instant::now();
    rig.router().await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_published_refuses_and_deregisters() {
    let mut rig = Rig::new().await;
    rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.drain.begin();
    rig.discovery.reached(router.id, InstanceStatus::Draining).await;
    router.drain.refusing().await;
    // The listener may be gone by now too; either way nothing is booked.
    let fault = router.route(request(1, 10, vec![])).await.unwrap_err();
    assert!(matches!(fault.reason, Reason::Draining | Reason::WorkerLost), "{fault:?}");
    rig.discovery.gone(router.id).await;
    router.running.finished().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn any_router_explains_a_decision_of_another() {
    let mut rig = Rig::new().await;
    rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut one = rig.router().await;
    let mut other = rig.router_with(|config| config.listen = Address::mem("other")).await;
    let answer = one.route(request(1, 10, vec![])).await.unwrap();
    let why = other.explain(&answer.decision_id).await.unwrap();
    assert_eq!(why.decision_id, answer.decision_id);
    let stranger = format!("{:016x}-1", 77);
    assert_eq!(other.explain(&stranger).await.unwrap_err().reason, Reason::DecisionUnknown);
}
