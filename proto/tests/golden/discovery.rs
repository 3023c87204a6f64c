//! Instances and their cards.

use armature_contracts::discovery::v1 as discovery;

use crate::kv::layout;
use crate::{Golden, digest, golden, one};

pub(crate) fn all() -> Vec<Golden> {
    vec![
        golden(
            "armature.discovery.v1.RegisterRequest",
            discovery::RegisterRequest { instance: Some(instance()) },
        ),
        golden(
            "armature.discovery.v1.WatchResponse#snapshot",
            discovery::WatchResponse {
                event: Some(discovery::watch_response::Event::Snapshot(discovery::ViewSnapshot {
                    revision: 300,
                    epoch: 0x0123_4567_89ab_cdef,
                    instances: vec![instance()],
                })),
            },
        ),
        golden(
            "armature.discovery.v1.WatchResponse#delta",
            discovery::WatchResponse {
                event: Some(discovery::watch_response::Event::Delta(discovery::ViewDelta {
                    revision: 301,
                    change: Some(discovery::view_delta::Change::Gone(discovery::InstanceGone {
                        instance_id: 42,
                        lease_epoch: 3,
                    })),
                })),
            },
        ),
        golden("armature.discovery.v1.ModelCard", card()),
    ]
}

fn instance() -> discovery::Instance {
    discovery::Instance {
        instance_id: 42,
        namespace: "default".into(),
        component: discovery::Component::Worker.into(),
        addresses: one("grpc", "127.0.0.1:7500".to_owned()),
        card_digest: digest(5),
        status: discovery::InstanceStatus::Draining.into(),
        lease_epoch: 3,
        labels: one("zone", "a".to_owned()),
        boot_id: "b1c8a0d2-0000-0000-0000-000000000000".into(),
    }
}

fn card() -> discovery::ModelCard {
    discovery::ModelCard {
        served_name: "model".into(),
        aliases: vec!["default".into()],
        model_digest: digest(1),
        tokenizer_digest: digest(2),
        template_digest: digest(3),
        context_length: 8192,
        block_size: 16,
        kv_blocks: 1024,
        roles: vec![discovery::Role::Prefill.into(), discovery::Role::Decode.into()],
        transports: vec!["shm".into(), "tcp".into()],
        engine: "llama".into(),
        limits: Some(discovery::Limits {
            max_running: 256,
            max_waiting: 8,
            max_logprobs: 20,
            max_batched_tokens: 8192,
        }),
        spec_hash: "r1".into(),
        weight: 1.5,
        capabilities: vec!["logprobs".into()],
        layout: Some(layout()),
        dp_rank_start: 2,
        dp_rank_count: 1,
        hash_scheme: "armature-xxh3-v1".into(),
        vocab_size: 49_152,
        eos_token_ids: vec![2, 0],
        step_prior: Some(discovery::StepPrior {
            prefill_a2: 4.25e-7,
            prefill_a1: 0.015625,
            prefill_a0: 16.5,
            decode_d2: -25.75,
            decode_d1: 54.0,
            decode_d0: 5.75,
            transfer_ms_per_token: 0.001,
        }),
    }
}
