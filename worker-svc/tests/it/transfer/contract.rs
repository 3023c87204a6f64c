//! What every transport promises.

use std::sync::Arc;

use armature_worker::domain::ids::BlockId;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::rig::{LONG, Plan, Rig, WIRES, landed, relay};

/// Runs a whole plan and checks every byte of the landing pool.
async fn whole(rig: &Rig, transfer: u128, plan: &Plan, rng: &mut StdRng) {
    let (landing, source) = rig.pair(transfer, plan.tokens).await;
    let steps = plan.steps(rng);
    let driving = async {
        for step in steps {
            plan.step(step, &landing, &source).unwrap();
            tokio::task::yield_now().await;
        }
        source.finish().unwrap();
    };
    let (_, moved, (mut windows, last)) = tokio::join!(driving, relay(&source, &landing), landed(&landing));
    assert_eq!(moved, Some(SourceEvent::Moved));
    let LandingEvent::AllLanded(commit) = last else { panic!("{last:?}") };
    let pulled = landing.transport() == Some(TransportKind::Shm);
    assert_eq!(commit, if pulled { Commit::AfterAckConfirmed } else { Commit::Now });
    windows.sort();
    assert_eq!(windows, (0..plan.windows.len() as u32).map(WindowIndex).collect::<Vec<_>>());
    source.acknowledge().unwrap();
    source.acknowledge().unwrap();
    assert_eq!(landing.next().await, None);
    assert_eq!(source.next().await, None);
    landing.quiesced().await;
    source.quiesced().await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_whole_transfer_is_bitwise_equal_and_touches_nothing_else(
        seed in any::<u64>(), layers in 1usize..5, kv_heads in 1usize..3, head_dim in 1usize..9,
        block_size in 1usize..9, from in 0u32..30, count in 1u32..60,
        frame in prop::sample::select(vec![1u64, 200, 1000, 4 << 20]),
    ) {
        let geometry = KvGeometry { layers, kv_heads, head_dim, block_size };
        let tokens = TokenRange::new(from, from + count);
        let blocks = tokens.end.div_ceil(block_size as u32) as usize + 3;
        let all: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
        runtime().block_on(async {
            for wire in WIRES {
                let mut rng = StdRng::seed_from_u64(seed);
                let rig = Rig::new(wire, geometry, blocks, frame).await;
                let before = rig.snapshot();
                let plan = Plan::random(&mut rng, &geometry, tokens, all.clone(), all.clone());
                whole(&rig, 1, &plan, &mut rng).await;
                assert!(rig.snapshot() == plan.expected(&rig.source_kv, &before), "bytes differ over {wire:?}");
            }
        });
    }
}

const GEOMETRY: KvGeometry = KvGeometry { layers: 4, kv_heads: 2, head_dim: 16, block_size: 8 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_transfers_at_once_do_not_mix() {
    for wire in WIRES {
        let per_transfer = 8u32;
        let rig = Arc::new(Rig::new(wire, GEOMETRY, 32 * per_transfer as usize, 3000).await);
        let mut expected = rig.snapshot();
        let mut running = tokio::task::JoinSet::new();
        for nth in 0..32u32 {
            let mut rng = StdRng::seed_from_u64(u64::from(nth));
            let own: Vec<BlockId> = (nth * per_transfer..(nth + 1) * per_transfer).map(BlockId).collect();
            let tokens = TokenRange::new(nth % 11, 64 - nth % 7);
            let plan = Plan::random(&mut rng, &GEOMETRY, tokens, own.clone(), own);
            expected = plan.expected(&rig.source_kv, &expected);
            let rig = Arc::clone(&rig);
            running.spawn(async move { whole(&rig, u128::from(nth), &plan, &mut rng).await });
        }
        running.join_all().await;
        assert!(rig.snapshot() == expected);
    }
}

fn one_window(rig: &Rig, tokens: TokenRange) -> Plan {
    let mut rng = StdRng::seed_from_u64(3);
    let all: Vec<BlockId> = (0..rig.source_kv.blocks() as u32).map(BlockId).collect();
    let layers = rig.source_kv.geometry().layers as u32;
    Plan {
        windows: vec![tokens],
        progress: vec![(LayerRange::new(0, layers), tokens)],
        ..Plan::random(&mut rng, rig.source_kv.geometry(), tokens, all.clone(), all)
    }
}

#[tokio::test]
async fn grants_that_do_not_fit_are_refused_and_the_session_goes_on() {
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        let tokens = TokenRange::new(4, 40);
        let (landing, source) = rig.pair(1, tokens).await;
        let blocks = |ids: &[u32]| ids.iter().map(|id| BlockId(*id)).collect::<Vec<_>>();
        let refused = |tokens: (u32, u32), ids: &[u32]| {
            landing.grant(TokenRange::new(tokens.0, tokens.1), blocks(ids)).unwrap_err()
        };
        assert!(matches!(refused((8, 16), &[1, 2]), GrantError::Extent(_)));
        assert!(matches!(refused((0, 8), &[1]), GrantError::BadTokens(_)));
        assert!(matches!(refused((8, 16), &[8]), GrantError::BadBlock));
        assert!(matches!(refused((8, 24), &[1, 1]), GrantError::BadBlock));
        source.granted(landing.grant(TokenRange::new(4, 12), blocks(&[1, 2])).unwrap()).unwrap();
        assert!(matches!(refused((11, 13), &[2]), GrantError::BadTokens(_)));
        assert!(matches!(refused((16, 24), &[2]), GrantError::BadBlock));
        source.granted(landing.grant(TokenRange::new(12, 40), blocks(&[2, 3, 4, 5])).unwrap()).unwrap();
        source.ready(LayerRange::new(0, 4), tokens, &blocks(&[0, 1, 2, 3, 4])).unwrap();
        let (moved, (_, last)) = tokio::join!(relay(&source, &landing), landed(&landing));
        assert_eq!(moved, Some(SourceEvent::Moved));
        assert!(matches!(last, LandingEvent::AllLanded(_)));
    }
}

#[tokio::test]
async fn a_source_ends_on_what_does_not_fit() {
    let all = LayerRange::new(0, 4);
    type Misuse = fn(&SourceSession, Grant) -> Result<(), Failure>;
    let cases: [(Misuse, Failure); 7] = [
        (|s, g| s.granted(Grant { window: WindowIndex(1), ..g }), Violation::BadGrant.into()),
        (|s, g| s.granted(Grant { tokens: TokenRange::new(0, 9), ..g }), Violation::BadGrant.into()),
        (
            |s, g| s.granted(g).and_then(|()| s.granted(Grant { window: WindowIndex(1), ..g })),
            Violation::BadGrant.into(),
        ),
        (|s, g| s.granted(Grant { transfer: TransferId(9), ..g }), Violation::OtherTransfer.into()),
        (
            |s, _| s.ready(LayerRange::new(0, 5), TokenRange::new(0, 8), &[BlockId(0)]),
            Violation::LayersOutsideModel.into(),
        ),
        (
            |s, _| s.ready(LayerRange::new(0, 1), TokenRange::new(0, 8), &[BlockId(99)]),
            Violation::BadBlocks.into(),
        ),
        (|s, _| s.finish(), Failure::Incomplete),
    ];
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        for (nth, (misuse, expected)) in cases.iter().enumerate() {
            let (landing, source) = rig.pair(nth as u128, TokenRange::new(8, 16)).await;
            let grant = landing.grant(TokenRange::new(8, 16), vec![BlockId(1)]).unwrap();
            assert_eq!(misuse(&source, grant), Err(*expected));
            assert_eq!(source.next().await, Some(SourceEvent::Failed(*expected)));
            assert_eq!(source.next().await, None);
            assert_eq!(source.ready(all, TokenRange::new(8, 16), &[BlockId(0)]), Err(*expected));
            assert_eq!(source.acknowledge(), Err(*expected));
            source.quiesced().await;
        }
    }
}

#[tokio::test]
async fn an_ack_before_everything_was_sent_is_refused() {
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        let (_landing, source) = rig.pair(1, TokenRange::new(0, 8)).await;
        assert_eq!(source.acknowledge(), Err(Violation::EarlyAck.into()));
        assert_eq!(source.next().await, Some(SourceEvent::Failed(Violation::EarlyAck.into())));
    }
}

#[tokio::test]
async fn a_source_that_expired_confirms_no_late_ack() {
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        let tokens = TokenRange::new(0, 64);
        let plan = one_window(&rig, tokens);
        let (offer, landing) = rig.landing.open(Rig::request(1, tokens)).unwrap();
        let pinned = tokio::time::Instant::now() + LONG;
        let (acceptance, source) = rig.source.accept(offer, pinned).unwrap();
        landing.accepted(acceptance).await.unwrap();
        for step in plan.steps(&mut StdRng::seed_from_u64(0)) {
            plan.step(step, &landing, &source).unwrap();
        }
        assert_eq!(relay(&source, &landing).await, Some(SourceEvent::Moved));
        assert!(matches!(landed(&landing).await.1, LandingEvent::AllLanded(_)));
        // D stops here, and wakes after the source's deadline.
        tokio::time::pause();
        tokio::time::advance(LONG).await;
        assert_eq!(source.next().await, Some(SourceEvent::Failed(Failure::Deadline)));
        assert_eq!(source.acknowledge(), Err(Failure::Deadline));
        source.quiesced().await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_landing_past_its_deadline_fails_and_is_forgotten() {
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        let (landing, _source) = rig.pair(1, TokenRange::new(0, 64)).await;
        assert_eq!(rig.landing.open(Rig::request(1, TokenRange::new(0, 8))).unwrap_err(), OpenError::InUse);
        tokio::time::pause();
        tokio::time::advance(LONG).await;
        assert_eq!(landed(&landing).await, (vec![], LandingEvent::Failed(Failure::Deadline)));
        landing.quiesced().await;
        tokio::time::resume();
        while rig.landing.open_transfers() > 0 {
            tokio::task::yield_now().await;
        }
        let over = landing.grant(TokenRange::new(0, 8), vec![BlockId(0)]).unwrap_err();
        assert_eq!(over, GrantError::Over(Failure::Deadline));
    }
}

#[tokio::test]
async fn closing_an_endpoint_ends_its_sessions() {
    for wire in WIRES {
        let rig = Rig::new(wire, GEOMETRY, 8, 4096).await;
        let (landing, source) = rig.pair(1, TokenRange::new(0, 64)).await;
        rig.landing.close().await;
        assert_eq!(landing.next().await, Some(LandingEvent::Failed(Failure::Closed)));
        rig.source.close().await;
        assert_eq!(source.next().await, Some(SourceEvent::Failed(Failure::Closed)));
        landing.quiesced().await;
        source.quiesced().await;
        assert_eq!(rig.landing.open(Rig::request(2, TokenRange::new(0, 8))).unwrap_err(), OpenError::Closed);
    }
}

#[test]
fn a_secret_does_not_print() {
    let secret = TransferSecret::new([105; 16]);
    for printed in [format!("{secret:?}"), format!("{:#?}", secret.clone())] {
        assert_eq!(printed, "TransferSecret(..)");
    }
    let request = Rig::request(1, TokenRange::new(0, 8));
    assert!(format!("{request:?}").contains("secret: TransferSecret(..)"));
}
