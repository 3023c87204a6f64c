//! Generation, hand-offs and reports of workers.

use armature_contracts::{inference::v1 as inference, worker::v1 as worker};

use crate::inference::{context, reservation, sampling, stop, token, usage};
use crate::kv::{rank, shard};
use crate::{Golden, digest, golden, seconds};

pub(crate) fn all() -> Vec<Golden> {
    vec![
        golden("armature.worker.v1.GenerateRequest#migrated", worker_generate()),
        golden(
            "armature.worker.v1.EndChoicesRequest",
            worker::EndChoicesRequest { reservation: Some(reservation()), choices: vec![2, 5] },
        ),
        golden(
            "armature.worker.v1.GenerateResponse#delta",
            worker::GenerateResponse { event: Some(worker::generate_response::Event::Delta(token_delta())) },
        ),
        golden(
            "armature.worker.v1.GenerateResponse#finished",
            worker::GenerateResponse {
                event: Some(worker::generate_response::Event::Finished(worker::GenerateFinished {
                    usage: Some(usage()),
                    prefill_worker: Some(rank(9)),
                })),
            },
        ),
        golden(
            "armature.worker.v1.PrefillRequest#start-migrated",
            worker::PrefillRequest {
                message: Some(worker::prefill_request::Message::Start(prefill_start())),
            },
        ),
        golden(
            "armature.worker.v1.PrefillRequest#grant",
            worker::PrefillRequest {
                message: Some(worker::prefill_request::Message::Grant(worker::Grant {
                    window: 1,
                    token_start: 16,
                    token_count: 496,
                    transport: "shm".into(),
                })),
            },
        ),
        golden(
            "armature.worker.v1.PrefillResponse#piece_ready",
            worker::PrefillResponse {
                message: Some(worker::prefill_response::Message::PieceReady(worker::PieceReady {
                    window: 1,
                    layer_start: 2,
                    layer_count: 1,
                    token_start: 16,
                    token_count: 496,
                    source_blocks: vec![5, 300, 70_000],
                })),
            },
        ),
        golden(
            "armature.worker.v1.PrefillResponse#done",
            worker::PrefillResponse {
                message: Some(worker::prefill_response::Message::Done(worker::PrefillDone {
                    first_tokens: vec![worker::FirstToken { choice: 1, token: Some(token()) }],
                    computed_tokens: 496,
                })),
            },
        ),
        golden("armature.worker.v1.WatchStateResponse", state()),
    ]
}

pub(crate) fn blocks() -> worker::BlockCheck {
    worker::BlockCheck {
        hash_scheme: "armature-xxh3-v1".into(),
        block_size: 16,
        first: Some(11),
        last: Some(12),
    }
}

pub(crate) fn choice() -> worker::ChoiceStart {
    worker::ChoiceStart { index: 1, generated_token_ids: vec![5, 49_000] }
}

pub(crate) fn worker_generate() -> worker::GenerateRequest {
    worker::GenerateRequest {
        context: Some(context()),
        worker: Some(rank(1)),
        prompt_token_ids: vec![1, 200, 49_151],
        blocks: Some(blocks()),
        sampling: Some(sampling()),
        stop: Some(stop()),
        choices: vec![choice()],
        prefill: vec![worker::PrefillTarget { worker: Some(rank(2)), address: "127.0.0.1:7502".into() }],
        local_prefill_forbidden: true,
    }
}

pub(crate) fn token_delta() -> worker::TokenDelta {
    worker::TokenDelta {
        choice: 1,
        position: 17,
        tokens: vec![token()],
        finish_reason: inference::FinishReason::Stop.into(),
    }
}

pub(crate) fn prefill_start() -> worker::PrefillStart {
    let transport = worker::LandingTransport {
        kind: "tcp".into(),
        address: "127.0.0.1:7501".into(),
        boot_id: "b1c8a0d2-0000-0000-0000-000000000000".into(),
    };
    let landing = worker::Landing {
        transfer_id: vec![0x11; 16].into(),
        transfer_secret: vec![0x22; 16].into(),
        transports: vec![transport],
    };
    worker::PrefillStart {
        context: Some(context()),
        worker: Some(rank(2)),
        decode_worker: Some(rank(1)),
        prompt_token_ids: vec![1, 200, 49_151],
        blocks: Some(blocks()),
        from_token: 16,
        sampling: Some(sampling()),
        stop: Some(stop()),
        choices: vec![choice()],
        handoff: Some(worker::prefill_start::Handoff::Landing(landing)),
        compat_key: digest(4),
        shard: Some(shard()),
    }
}

pub(crate) fn state() -> worker::WatchStateResponse {
    let rank_state = worker::RankState {
        dp_rank: 1,
        running: 3,
        waiting: 1,
        uncomputed_prefill_tokens: 700,
        blocks_active: 10,
        blocks_cached: 20,
        blocks_free: 30,
        next_victim_age: seconds(4),
        step_model: Some(worker::StepModel {
            base_ms: 1.5,
            per_prefill_token_ms: 0.5,
            per_decode_row_ms: 0.25,
            per_context_token_ms: 0.125,
            observations: 1000,
        }),
        warm_peers: vec![42, u64::MAX],
        blocks_quarantined: 2,
        kv_count: 20,
        kv_digest: 0xfeed,
        computed_prompt_tokens: 5000,
        generated_tokens: 600,
        kv_batch: 1001,
    };
    worker::WatchStateResponse {
        report_seq: 9,
        instance_id: 42,
        ranks: vec![rank_state],
        settled: vec![worker::Settled {
            reservation: Some(reservation()),
            settlement: worker::Settlement::Admitted.into(),
            prefill_worker: Some(rank(2)),
        }],
        draining: true,
    }
}
