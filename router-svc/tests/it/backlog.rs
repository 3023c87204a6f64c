//! Requests that wait for room: by the domain with simulated workers, and by calls with scripted ones. Time is virtual.

use std::collections::BTreeMap;
use std::time::Duration;

use armature_contracts::discovery::v1::{InstanceStatus, Limits as CardLimits, ModelCard, Role};
use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1::Budget;
use armature_contracts::router::v1::{Constraints, RouteRequest, RouteResponse};
use armature_contracts::worker::v1::Settlement;
use armature_router::adapters::record::read;
use armature_router::domain::backlog::Bounds;
use armature_router::domain::explain::Outcome;
use armature_router::domain::units::Millis;
use armature_router::domain::worker::Limits;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, RouterUnderTest, card, decode_of, key, patient, request, with};
use crate::simulated_fleet::{self as simulated, Asked, BOUNDS, Fate, Fleet};

const DEPTH: Option<Millis> = Some(Millis(500.0));

fn limits(max_running: u32, max_waiting: u32) -> Limits {
    Limits { max_running, max_waiting, max_batched_tokens: 2048 }
}

fn asked(n: u64, tenant: u64, wait_ms: u64, service_ms: u64) -> Asked {
    let question = simulated::question(160, 100);
    Asked {
        request: simulated::request(n, question),
        tenant,
        priority: 0,
        wait: Duration::from_millis(wait_ms),
        service: Duration::from_millis(service_ms),
    }
}

#[test]
fn every_call_ends_once_and_no_worker_is_given_more_than_it_has_room_for() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let workers: Vec<_> = (0..rng.random_range(1..6))
            .map(|_| limits(rng.random_range(1..8), rng.random_range(2..6)))
            .collect();
        let depth = rng.random_bool(0.7).then_some(Millis(500.0));
        let bounds = Bounds { max_requests: rng.random_range(1..200), fair: rng.random(), ..BOUNDS };
        let mut fleet = Fleet::new(simulated::dispatch(depth, bounds), &workers, seed);
        for n in 1..=300 {
            let (wait, service) = (rng.random_range(0..20_000), rng.random_range(10..3_000));
            let wait = if rng.random_bool(0.1) { 0 } else { wait };
            let mut asked = asked(n, rng.random_range(0..4), wait, service);
            asked.priority = rng.random_range(-9..10);
            let after = Duration::from_millis(rng.random_range(0..10_000));
            fleet.ask(after, asked);
            if rng.random_bool(0.2) {
                fleet.leave(after + Duration::from_millis(rng.random_range(0..5_000)), n);
            }
        }
        // The fleet checks at every event that a call ends once, in time, and that workers get no more than they queue.
        fleet.run(Duration::from_secs(3_600));
        assert_eq!(fleet.refused_by_workers, 0, "seed {seed}");
        assert_eq!(fleet.fates.len(), 300);
        assert_eq!(fleet.dispatch.waiting(), Default::default(), "seed {seed}");
        assert_eq!(fleet.dispatch.router().totals().open, 0, "seed {seed}");
    }
}

#[test]
fn three_times_too_much_is_all_served_late() {
    // Eight places of a second each: 8 requests a second; 24 a second come for 10 s.
    let mut fleet = Fleet::new(simulated::dispatch(DEPTH, BOUNDS), &[limits(4, 2); 2], 1);
    for n in 0..240 {
        fleet.ask(Duration::from_millis(n * 1_000 / 24), asked(n + 1, 0, 60_000, 1_000));
    }
    fleet.run(Duration::from_secs(60));
    assert!(fleet.fates.values().all(|fate| matches!(fate, Fate::Served { .. })), "{:?}", fleet.fates);
    // Workers are kept busy: 30 s of work are done in little more.
    assert!(fleet.now.0 < Duration::from_secs(33), "{:?}", fleet.now);
}

#[test]
fn tenants_share_what_there_is_however_much_one_asks() {
    let mut fleet = Fleet::new(simulated::dispatch(DEPTH, BOUNDS), &[limits(4, 2); 2], 2);
    // One floods at once, the other asks for its half of the fleet, steadily.
    for n in 0..400 {
        fleet.ask(Duration::from_millis(n), asked(n + 1, 1, 100_000, 1_000));
    }
    for n in 0..40 {
        fleet.ask(Duration::from_millis(2_000 + n * 250), asked(1_000 + n, 2, 100_000, 1_000));
    }
    fleet.run(Duration::from_secs(100));
    for n in 1_000..1_040 {
        let Fate::Served { waited, .. } = &fleet.fates[&n] else { panic!("{:?}", fleet.fates[&n]) };
        assert!(*waited < Duration::from_millis(1_500), "request {n} of the modest tenant waited {waited:?}");
    }
}

#[test]
fn who_cannot_be_served_in_time_is_told_at_once() {
    let mut fleet = Fleet::new(simulated::dispatch(DEPTH, BOUNDS), &[limits(2, 2)], 3);
    for n in 0..60 {
        fleet.ask(Duration::from_millis(n), asked(n + 1, 0, 100_000, 1_000));
    }
    // By now it is known that two leave a second; more than 20 s of work wait.
    fleet.ask(Duration::from_secs(8), asked(100, 0, 2_000, 1_000));
    fleet.ask(Duration::from_secs(8), asked(101, 0, 60_000, 1_000));
    fleet.run(Duration::from_secs(60));
    let Fate::Refused(why) = &fleet.fates[&100] else { panic!("{:?}", fleet.fates[&100]) };
    assert!(why.contains("2000 ms are allowed"), "{why}");
    assert!(matches!(fleet.fates[&101], Fate::Served { .. }));
}

#[test]
fn a_higher_class_goes_first_and_a_lower_one_still_goes() {
    let mut fleet = Fleet::new(simulated::dispatch(DEPTH, BOUNDS), &[limits(1, 2)], 4);
    let low = 1_000;
    for n in 0..6 {
        fleet.ask(Duration::ZERO, asked(n + 1, 0, 300_000, 1_000));
    }
    fleet.ask(Duration::from_millis(10), Asked { priority: -8, ..asked(low, 0, 300_000, 1_000) });
    // Urgent ones come for ever, exactly as fast as they are served.
    for n in 0..150 {
        let urgent = Asked { priority: 8, ..asked(100 + n, 0, 300_000, 1_000) };
        fleet.ask(Duration::from_millis(500 + n * 1_000), urgent);
    }
    fleet.run(Duration::from_secs(400));
    let place = |n| fleet.served.iter().position(|other| *other == n).unwrap();
    assert!(place(low) > place(130), "an urgent one of the first 30 s goes before it");
    // 17 classes of 5 s: whoever came later than 85 s after it cannot go before it.
    assert!(place(low) < place(100 + 86), "{:?}", fleet.served);
}

/// Takes one request at a time and queues two.
fn small() -> ModelCard {
    ModelCard {
        limits: Some(CardLimits { max_running: 1, max_waiting: 2, ..Default::default() }),
        ..card(Role::Aggregated)
    }
}

async fn one_full_worker() -> (Rig, FakeWorker, RouterUnderTest) {
    let mut rig = Rig::new().await;
    let (worker, _) = rig.worker_with(FakeWorker::new(1), small()).await;
    let mut router = rig.router().await;
    fill(&worker, &mut router).await;
    (rig, worker, router)
}

async fn fill(worker: &FakeWorker, router: &mut RouterUnderTest) {
    worker.load(|load| (load.running, load.waiting) = (1, 2));
    router.sees(worker.rank, |view| view.waiting == 2).await;
}

type Call = JoinHandle<Result<RouteResponse, Fault>>;

/// A call on its way; it waits in the router when this returns.
async fn waits(router: &RouterUnderTest, request: RouteRequest, calls: u64) -> Call {
    let mut client = router.client.clone();
    let call = tokio::spawn(async move {
        let answer = client.route(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Fault::from_status(&status))
    });
    router.waiting(calls).await;
    call
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_a_report_shows_room() {
    let (_rig, worker, mut router) = one_full_worker().await;
    let first = waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await;
    let second = waits(&router, patient(request(2, 40, vec![]), 20_000), 2).await;
    // Room for one more of two: who came first.
    worker.load(|load| load.waiting = 1);
    assert_eq!(decode_of(&first.await.unwrap().unwrap()), worker.id());
    router.waiting(1).await;
    assert!(!second.is_finished());
    router.sees(worker.rank, |view| view.unsettled_reservations == 1).await;
    // It is there, and the report counts it: no room again.
    worker.load(|load| load.waiting = 2);
    worker.settle(key(1), Settlement::Admitted, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    worker.load(|load| (load.running, load.waiting) = (0, 0));
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn releases_and_new_workers_make_room_too() {
    let mut rig = Rig::new().await;
    let (worker, _) = rig.worker_with(FakeWorker::new(1), small()).await;
    let mut router = rig.router().await;
    router.sees(worker.rank, |view| view.status == "READY").await;
    for n in 1..=2 {
        router.route(request(n, 40, vec![])).await.unwrap();
    }
    let third = waits(&router, patient(request(3, 40, vec![]), 20_000), 1).await;
    router.release([key(1)]).await;
    assert!(third.await.unwrap().is_ok());
    let fourth = waits(&router, patient(request(4, 40, vec![]), 20_000), 1).await;
    rig.worker_with(FakeWorker::new(2), small()).await;
    assert_eq!(decode_of(&fourth.await.unwrap().unwrap()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_leaves_nothing_behind() {
    let (_rig, worker, mut router) = one_full_worker().await;
    let call = waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await;
    call.abort();
    router.waiting(0).await;
    worker.load(|load| (load.running, load.waiting) = (0, 0));
    router.sees(worker.rank, |view| view.running == 0 && view.unsettled_reservations == 0).await;
    // It was not released: the same key may come again.
    assert!(router.route(request(1, 40, vec![])).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_wait_is_refused_at_once() {
    let (_rig, _worker, mut router) = one_full_worker().await;
    let began = Instant::now();
    let fault = router.route(patient(request(1, 40, vec![]), 0)).await.unwrap_err();
    assert_eq!((fault.reason, fault.retry_after.is_some()), (Reason::AllWorkersBusy, true));
    assert!(began.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_hopeless_request_is_refused_at_once_with_the_time_to_come_back() {
    let (_rig, worker, mut router) = one_full_worker().await;
    // A millisecond per token.
    worker.load(|load| load.uncomputed_prefill_tokens = 20_000);
    router.sees(worker.rank, |view| view.uncomputed_prefill_tokens == 20_000).await;
    let began = Instant::now();
    let fault = router.route(patient(request(1, 40, vec![]), 2_000)).await.unwrap_err();
    assert_eq!((fault.reason, fault.retry_after), (Reason::AllWorkersBusy, Some(Duration::from_secs(20))));
    assert!(began.elapsed() < Duration::from_millis(100));
    waits(&router, patient(request(2, 40, vec![]), 30_000), 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time_and_before_the_deadline_of_the_call() {
    let (_rig, _worker, mut router) = one_full_worker().await;
    let began = Instant::now();
    let fault = router.route(patient(request(1, 40, vec![]), 3_000)).await.unwrap_err();
    assert_eq!((fault.reason, fault.retry_after.is_some()), (Reason::AllWorkersBusy, true));
    assert!((3_000..3_100).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());

    let began = Instant::now();
    let mut call = tonic::Request::new(patient(request(2, 40, vec![]), 30_000));
    call.set_timeout(Duration::from_secs(2));
    let status = router.client.route(call).await.unwrap_err();
    let fault = Fault::from_status(&status);
    assert_eq!((fault.reason, fault.retry_after.is_some()), (Reason::AllWorkersBusy, true), "{status:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    router.waiting(0).await;
}

#[tokio::test(start_paused = true)]
async fn calls_for_one_key_get_one_answer_and_book_once() {
    let (_rig, worker, mut router) = one_full_worker().await;
    let calls = [
        waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await,
        waits(&router, patient(request(1, 40, vec![]), 20_000), 2).await,
    ];
    worker.load(|load| load.waiting = 1);
    let [first, second] = calls.map(async |call| call.await.unwrap().unwrap());
    assert_eq!(first.await, second.await);
    router.sees(worker.rank, |view| view.unsettled_reservations == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_the_wait_and_is_remembered() {
    let (_rig, worker, mut router) = one_full_worker().await;
    let call = waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await;
    router.release([key(1)]).await;
    assert_eq!(call.await.unwrap().unwrap_err().reason, Reason::Released);
    worker.load(|load| (load.running, load.waiting) = (0, 0));
    router.sees(worker.rank, |view| view.running == 0).await;
    assert_eq!(router.route(request(1, 40, vec![])).await.unwrap_err().reason, Reason::Released);
}

#[tokio::test(start_paused = true)]
async fn a_drain_sends_those_that_wait_elsewhere() {
    let (rig, _worker, router) = one_full_worker().await;
    let call = waits(&router, patient(request(1, 40, vec![]), 50_000), 1).await;
    let began = Instant::now();
    router.drain.begin();
    rig.discovery.reached(router.id, InstanceStatus::Draining).await;
    assert_eq!(call.await.unwrap().unwrap_err().reason, Reason::Draining);
    assert!(began.elapsed() < Duration::from_secs(5), "the drain did not wait for it");
    router.running.finished().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_a_certain_worker_does_not_hold_up_others() {
    let mut rig = Rig::new().await;
    let (full, _) = rig.worker_with(FakeWorker::new(1), small()).await;
    let (other, _) = rig.worker_with(FakeWorker::new(2), small()).await;
    let mut router = rig.router().await;
    fill(&full, &mut router).await;
    fill(&other, &mut router).await;
    let pin = Constraints { pin_decode: Some(full.rank.into()), ..Default::default() };
    let pinned = waits(&router, patient(with(request(1, 40, vec![]), pin), 20_000), 1).await;
    let free = waits(&router, patient(request(2, 40, vec![]), 20_000), 2).await;
    other.load(|load| load.waiting = 1);
    assert_eq!(decode_of(&free.await.unwrap().unwrap()), other.id());
    assert!(!pinned.is_finished());
    full.load(|load| load.waiting = 1);
    assert_eq!(decode_of(&pinned.await.unwrap().unwrap()), full.id());
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_served_does_not_wait() {
    let (_rig, _worker, mut router) = one_full_worker().await;
    waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await;
    let fault = router.route(patient(request(2, 100_000, vec![]), 20_000)).await.unwrap_err();
    assert_eq!(fault.reason, Reason::ContextLengthExceeded);
}

#[tokio::test(start_paused = true)]
async fn locality_is_that_of_the_moment_it_is_taken() {
    let mut rig = Rig::new().await;
    let workers = [FakeWorker::new(1), FakeWorker::new(2)];
    for worker in &workers {
        rig.worker_with(worker.clone(), small()).await;
    }
    let mut router = rig.router().await;
    for worker in &workers {
        fill(worker, &mut router).await;
    }
    let blocks = crate::rig::chain(7, 10);
    let call = waits(&router, patient(request(1, 165, blocks.clone()), 20_000), 1).await;
    // Both come to have room, and one of them has what the other has not, since.
    workers[1].store(&blocks);
    router.knows(&workers[1]).await;
    workers[1].load(|load| load.waiting = 1);
    let answer = call.await.unwrap().unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (2, 10));
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_was_waited_for_is_explained_and_recorded_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new().await;
    let (worker, _) = rig.worker_with(FakeWorker::new(1), small()).await;
    let mut router = rig.router_with(|config| config.explain.record_dir = Some(dir.path().to_owned())).await;
    fill(&worker, &mut router).await;
    let call = waits(&router, patient(request(1, 40, vec![]), 20_000), 1).await;
    worker.load(|load| load.waiting = 1);
    let answer = call.await.unwrap().unwrap();
    assert!(router.explain(&answer.decision_id).await.unwrap().decode[0].chosen);
    router.drain.begin();
    router.running.finished().await.unwrap();
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|it| it == "rec")).unwrap();
    let (decisions, answers) = (read::decisions(&file).unwrap(), read::answers(&file).unwrap());
    let [(number, inputs)] = &decisions[..] else { panic!("{} decisions", decisions.len()) };
    assert_eq!(answers[&number.0], Outcome::of(inputs).to_string());
}

#[tokio::test(start_paused = true)]
async fn without_a_backlog_a_full_fleet_refuses_at_once() {
    let mut rig = Rig::new().await;
    let (worker, _) = rig.worker_with(FakeWorker::new(1), small()).await;
    let mut router = rig.router_with(|config| config.backlog.max_requests = 0).await;
    fill(&worker, &mut router).await;
    let fault = router.route(patient(request(1, 40, vec![]), 20_000)).await.unwrap_err();
    assert_eq!(fault.reason, Reason::AllWorkersBusy);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_claims_is_checked() {
    let (_rig, _worker, mut router) = one_full_worker().await;
    let seconds = |mut request: RouteRequest, seconds| {
        let budget = request.context.as_mut().unwrap().budget.insert(Budget::default());
        budget.max_queue.insert(Default::default()).seconds = seconds;
        request
    };
    let fault = router.route(seconds(request(1, 40, vec![]), -1)).await.unwrap_err();
    assert_eq!(fault.violations[0].0, "context.budget.max_queue");
    let mut long = request(2, 40, vec![]);
    long.context.as_mut().unwrap().tenant = "x".repeat(257);
    assert_eq!(router.route(long).await.unwrap_err().violations[0].0, "context.tenant");
    // The longest wait that can be written is the router's own limit.
    let began = Instant::now();
    let mut forever = seconds(request(3, 40, vec![]), i64::MAX);
    forever.context.as_mut().unwrap().priority = i32::MAX;
    assert_eq!(router.route(forever).await.unwrap_err().reason, Reason::AllWorkersBusy);
    assert!((60_000..60_100).contains(&began.elapsed().as_millis()));
}

#[tokio::test(start_paused = true)]
async fn metrics_say_who_waits_and_why_not() {
    let (_rig, _worker, mut router) = one_full_worker().await;
    router.route(patient(request(1, 40, vec![]), 1_000)).await.unwrap_err();
    let _waits = waits(&router, patient(request(2, 40, vec![]), 20_000), 1).await;
    let page = router.metrics().await;
    let value =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let values = BTreeMap::from([
        ("backlog_requests", value("armature_router_backlog_requests")),
        ("late", value("armature_router_backlog_refusals_total{reason=\"late\"}")),
        ("waited", value("armature_router_backlog_waited_seconds_count")),
        ("bound", value("armature_router_backlog_max_requests")),
    ]);
    let expected = [Some(1.0), Some(4096.0), Some(1.0), Some(1.0)];
    assert_eq!(values.into_values().collect::<Vec<_>>(), expected);
}
