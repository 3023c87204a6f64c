//! Questions to a router, and what it says of its decisions and workers.

use armature_contracts::router::v1 as router;

use crate::inference::context;
use crate::kv::{block_hashes, rank};
use crate::{Golden, digest, golden, one, seconds};

pub(crate) fn all() -> Vec<Golden> {
    vec![
        golden("armature.router.v1.RouteRequest#overrides", route()),
        golden("armature.router.v1.RouteResponse", routed()),
        golden("armature.router.v1.ExplainResponse#otherwise", explained()),
        golden("armature.router.v1.ExplainRequest#otherwise", explain()),
        golden("armature.router.v1.ListWorkersResponse", worker_views()),
    ]
}

fn route() -> router::RouteRequest {
    router::RouteRequest {
        context: Some(context()),
        namespace: "default".into(),
        model_digest: digest(1),
        tokenizer_digest: digest(2),
        template_digest: digest(3),
        prompt_tokens: 200,
        prompt: Some(block_hashes()),
        expected_output_tokens: 300,
        choices: 2,
        constraints: Some(router::Constraints {
            labels: one("zone", "a".to_owned()),
            pin_decode: Some(rank(1)),
            pin_prefill: Some(rank(2)),
            exclude: vec![rank(3)],
            prefill: router::PrefillChoice::Remote.into(),
            allow: vec![rank(4)],
        }),
        generated_tokens: 17,
        overrides: Some(overrides()),
    }
}

fn overrides() -> router::Overrides {
    router::Overrides { kappa: Some(1.5), eta: Some(0.25), temperature_ms: Some(12.0) }
}

fn explain() -> router::ExplainRequest {
    router::ExplainRequest { decision_id: "0000000000000007".into(), otherwise: Some(overrides()) }
}

fn target(instance_id: u64) -> router::Target {
    router::Target { worker: Some(rank(instance_id)), address: "127.0.0.1:7500".into(), matched_blocks: 3 }
}

fn routed() -> router::RouteResponse {
    router::RouteResponse {
        decode: Some(target(1)),
        prefill: vec![target(2), target(3)],
        decision_id: "0000000000000007".into(),
        matched_blocks: 3,
        local_prefill_forbidden: true,
    }
}

fn explained() -> router::ExplainResponse {
    let candidate = |instance_id| router::Candidate {
        worker: Some(rank(instance_id)),
        chosen: true,
        excluded: "draining".into(),
        matched_blocks: 3,
        terms_ms: one("prefill", 12.5),
        cost_ms: 14.25,
        report_age: seconds(2),
    };
    router::ExplainResponse {
        decision_id: "0000000000000007".into(),
        policy: "kv".into(),
        age: seconds(1),
        decode: vec![candidate(1)],
        prefill: vec![candidate(2)],
        reasons: vec!["remote prefill costs less".into()],
        prompt_tokens: 200,
        otherwise: Some(router::Outcome { decode: Some(rank(1)), prefill: vec![rank(2)] }),
    }
}

fn worker_views() -> router::ListWorkersResponse {
    let view = router::WorkerView {
        worker: Some(rank(1)),
        address: "127.0.0.1:7500".into(),
        status: "READY".into(),
        served_name: "model".into(),
        roles: vec!["decode".into()],
        engine: "sim".into(),
        running: 3,
        waiting: 1,
        uncomputed_prefill_tokens: 700,
        blocks_active: 10,
        blocks_cached: 20,
        blocks_free: 30,
        blocks_total: 60,
        unsettled_reservations: 2,
        indexed_blocks: 29,
        reported_blocks: 30,
        index_known: true,
        report_age: seconds(1),
    };
    router::ListWorkersResponse { workers: vec![view], policy: "kv".into() }
}
