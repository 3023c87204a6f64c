//! Abort at every step, by either side: both sessions end typed, and no byte changes afterwards.

use armature_worker::domain::ids::BlockId;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::rig::{Plan, Rig, WIRES, landed, relay};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    Source,
    Landing,
    SourceDropped,
    LandingDropped,
}

const GEOMETRY: KvGeometry = KvGeometry { layers: 3, kv_heads: 2, head_dim: 64, block_size: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_at_every_step_by_either_side() {
    let tokens = TokenRange::new(5, 93);
    let all: Vec<BlockId> = (0..12).map(BlockId).collect();
    let mut transfer = 0u128;
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 12, 20_000).await;
        for who in [Who::Source, Who::Landing, Who::SourceDropped, Who::LandingDropped] {
            for stop in 0.. {
                let mut rng = StdRng::seed_from_u64(stop as u64);
                let plan = Plan::random(&mut rng, &GEOMETRY, tokens, all.clone(), all.clone());
                let steps = plan.steps(&mut rng);
                if stop > steps.len() {
                    break;
                }
                transfer += 1;
                let (landing, source) = rig.pair(transfer, tokens).await;
                let (mut landing, mut source) = (Some(landing), Some(source));
                for step in &steps[..stop] {
                    let (landing, source) = (landing.as_ref().unwrap(), source.as_ref().unwrap());
                    plan.step(*step, landing, source).unwrap();
                    for _ in 0..rng.random_range(0..3) {
                        tokio::task::yield_now().await;
                    }
                    if landing.transport() == Some(TransportKind::Shm) {
                        relay_ready(source, landing).await;
                    }
                }
                let (landing_quiet, source_quiet) =
                    (landing.as_ref().unwrap().quiesced(), source.as_ref().unwrap().quiesced());
                match who {
                    Who::Source => source.as_ref().unwrap().abort(),
                    Who::Landing => landing.as_ref().unwrap().abort(),
                    Who::SourceDropped => source = None,
                    Who::LandingDropped => landing = None,
                }
                // The other side learns of it by the control stream at the latest.
                if let Some(session) = landing.as_ref() {
                    session.fail(Failure::Peer(PeerFailure::Aborted));
                    let (_, last) = landed(session).await;
                    let complete = stop == steps.len() && matches!(last, LandingEvent::AllLanded(_));
                    assert!(complete || matches!(last, LandingEvent::Failed(_)), "{last:?}");
                }
                if let Some(session) = source.as_ref() {
                    session.fail(Failure::Peer(PeerFailure::Aborted));
                    assert!(matches!(last_of(session).await, SourceEvent::Failed(_)));
                }
                landing_quiet.await;
                source_quiet.await;
                // The blocks go to somebody else now, on both sides.
                for block in &all {
                    rig.landing_kv.poison(*block);
                }
                let quarantined = rig.snapshot();
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                assert!(rig.snapshot() == quarantined, "written after quiescence: {who:?} at {stop}");
            }
        }
        while rig.landing.open_transfers() + rig.source.open_transfers() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Relays what is there, without waiting for more.
async fn relay_ready(source: &SourceSession, landing: &LandingSession) {
    tokio::select! {
        biased;
        _ = relay(source, landing) => {}
        () = std::future::ready(()) => {}
    }
}

async fn last_of(source: &SourceSession) -> SourceEvent {
    loop {
        match source.next().await {
            Some(SourceEvent::Failed(failure)) => return SourceEvent::Failed(failure),
            Some(_) => {}
            None => panic!("events ended without a last one"),
        }
    }
}
