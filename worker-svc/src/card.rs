//! The model card: what this worker serves, for frontends and routers.

use armature_contracts::discovery::v1 as discovery;
use armature_kv_hash::HASH_SCHEME;

use crate::adapters::openai::Found;
use crate::config::{Config, EngineKind, Transport};
use crate::engine::sim::Polynomial;
use crate::identity::Identity;

/// Digest of a card or artifact: BLAKE3-256 of its bytes.
pub fn digest(bytes: &[u8]) -> Vec<u8> {
    blake3::hash(bytes).as_bytes().to_vec()
}

/// The card of `me` as `config` deploys it.
pub fn card(config: &Config, me: &Identity, tokenizer: &[u8], template: &[u8]) -> discovery::ModelCard {
    let spec = &me.spec;
    let served_name = if config.served_name.is_empty() { &spec.name } else { &config.served_name };
    discovery::ModelCard {
        served_name: served_name.clone(),
        aliases: config.aliases.clone(),
        model_digest: spec.model_digest.to_vec().into(),
        tokenizer_digest: digest(tokenizer).into(),
        template_digest: digest(template).into(),
        context_length: spec.context_length as u32,
        block_size: me.block_size() as u32,
        kv_blocks: config.kv_blocks as u32,
        roles: vec![discovery::Role::from(config.role).into()],
        transports: config.transports.iter().map(|transport| transport_name(*transport).into()).collect(),
        engine: engine_name(config.engine).into(),
        limits: Some(discovery::Limits {
            max_running: config.scheduler.max_running as u32,
            max_waiting: config.scheduler.max_waiting as u32,
            max_logprobs: crate::domain::sampling::MAX_LOGPROBS.into(),
            max_batched_tokens: config.scheduler.max_batched_tokens as u32,
        }),
        spec_hash: String::new(),
        weight: 1.0,
        capabilities: ["sampling", "logprobs", "migrate", "handoff.landing"].map(String::from).to_vec(),
        layout: Some(me.layout()),
        dp_rank_start: 0,
        dp_rank_count: 1,
        hash_scheme: HASH_SCHEME.into(),
        vocab_size: spec.vocab_size as u32,
        eos_token_ids: spec.eos_token_ids.clone(),
        step_prior: Some(step_prior(config)),
    }
}

/// The card of an adapter to `found`: what of our own engines' is not true of it is replaced.
pub fn external(config: &Config, me: &Identity, found: &Found, kv_blocks: usize) -> discovery::ModelCard {
    let max_logprobs = found.abilities.max_logprobs().unwrap_or_default();
    let mut card = card(config, me, &found.tokenizer, &found.template);
    card.kv_blocks = kv_blocks as u32;
    card.transports.clear();
    card.engine = found.abilities.dialect.name().into();
    card.capabilities = found.abilities.capabilities();
    if let Some(limits) = &mut card.limits {
        limits.max_running = found.slots.unwrap_or(config.scheduler.max_running) as u32;
        limits.max_logprobs = max_logprobs.into();
        limits.max_batched_tokens = 0;
    }
    card
}

fn engine_name(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::Llama => "llama",
        EngineKind::Sim => "sim",
        EngineKind::OpenAi => "openai",
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
        EngineKind::LlamaCpp => "llamacpp",
    }
}

fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Shm => "shm",
        Transport::Tcp => "tcp",
    }
}

/// What routers believe of step times until reports carry fitted ones.
fn step_prior(config: &Config) -> discovery::StepPrior {
    match config.engine {
        EngineKind::Sim => {
            let scaled = |curve: &Polynomial| {
                [curve.quadratic, curve.linear, curve.constant]
                    .map(|coefficient| coefficient / config.sim.speedup)
            };
            let [prefill_a2, prefill_a1, prefill_a0] = scaled(&config.sim.prefill_ms);
            let [decode_d2, decode_d1, decode_d0] = scaled(&config.sim.decode_ms);
            discovery::StepPrior {
                prefill_a2,
                prefill_a1,
                prefill_a0,
                decode_d2,
                decode_d1,
                decode_d0,
                transfer_ms_per_token: 0.01,
            }
        }
        // Nothing is known of it: routers have a prior of their own.
        EngineKind::OpenAi | EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaCpp => {
            discovery::StepPrior::default()
        }
        // SmolLM2-135M on one core (docs/benchmarks.md): about 400 prompt tokens and 50 decode steps a second, 46 kB of KV
        // a token.
        EngineKind::Llama => discovery::StepPrior {
            prefill_a2: 2e-4,
            prefill_a1: 2.5,
            prefill_a0: 10.0,
            decode_d2: 0.0,
            decode_d1: 25.0,
            decode_d0: 20.0,
            transfer_ms_per_token: 0.02,
        },
    }
}
