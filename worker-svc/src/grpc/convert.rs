//! Messages to domain types and back. Generated types stop here.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::{ReservationKey, WorkerRank};
use armature_contracts::inference::v1 as inference;
use armature_contracts::kv::v1 as kv;
use armature_contracts::worker::v1 as wire;
use armature_kv_hash::{HASH_SCHEME, sequence_hashes};

use crate::domain::ids;
use crate::domain::kv_events::KvState;
use crate::domain::report::{LoadReport, Settlement};
use crate::domain::request::{
    CacheRoot, FinishReason, Priority, RequestKind, ResumedChoice, StopRule, Submission, Usage,
};
use crate::domain::sampled::Sampled;
use crate::domain::sampling::SamplingParams;
use crate::domain::time::Time;
use crate::driver::{Counters, Job};
use crate::identity::{Identity, root_key};

/// Longest tenant or salt in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Most choices of a request.
const MAX_CHOICES: usize = 128;

/// The parts of Generate and Prefill that say what to compute, checked.
#[derive(Debug)]
pub(super) struct Parsed {
    /// This worker, in the incarnation that was asked for.
    pub(super) worker: WorkerRank,
    pub(super) prompt: Arc<[u32]>,
    pub(super) root: Arc<CacheRoot>,
    pub(super) reservation: ReservationKey,
    pub(super) choices: Vec<ResumedChoice>,
    pub(super) stop: StopRule,
    pub(super) params: SamplingParams,
    pub(super) seed: u64,
    pub(super) priority: Priority,
    pub(super) migrated: bool,
    pub(super) wants_logprobs: bool,
    pub(super) ignore_eos: bool,
}

impl Parsed {
    /// The job of this request in one of its kinds.
    pub(super) fn job(&self, kind: RequestKind, deadline: Option<Time>) -> Job {
        Job {
            worker: self.worker,
            submission: Submission {
                reservation: key(self.reservation),
                kind,
                prompt: Arc::clone(&self.prompt),
                choices: self.choices.clone(),
                root: Arc::clone(&self.root),
                stop: self.stop.clone(),
                priority: self.priority,
                migrated: self.migrated,
                deadline,
            },
            params: self.params.clone(),
            seed: self.seed,
            ignore_eos: self.ignore_eos,
        }
    }
}

/// Borrowed fields that Generate and PrefillStart have in common.
pub(super) struct Asked<'a> {
    pub(super) context: Option<&'a inference::RequestContext>,
    pub(super) worker: Option<&'a kv::WorkerRank>,
    pub(super) prompt: &'a [u32],
    pub(super) blocks: Option<&'a wire::BlockCheck>,
    pub(super) sampling: Option<&'a inference::SamplingParams>,
    pub(super) stop: Option<&'a inference::StopConditions>,
    pub(super) choices: &'a [wire::ChoiceStart],
}

impl Asked<'_> {
    /// Checks everything that does not depend on load, as `present` of worker `me`.
    pub(super) fn parse(&self, me: &Identity, present: WorkerRank) -> Result<Parsed, Fault> {
        let context = self.context.ok_or_else(|| Fault::invalid("context", "is missing"))?;
        let reservation = reservation("context.reservation", context.reservation.as_ref())?;
        check_target(self.worker, context, me, present)?;
        for (field, value) in
            [("context.tenant", &context.tenant), ("context.cache_salt", &context.cache_salt)]
        {
            if value.len() > MAX_NAME_BYTES {
                return Err(Fault::invalid(
                    field,
                    format!("{} bytes are more than {MAX_NAME_BYTES}", value.len()),
                ));
            }
        }
        let adapter = context.adapter.as_ref().map_or(&[][..], |adapter| &adapter.digest);
        if context.adapter.is_some() {
            return Err(Fault::new(Reason::Unsupported, "this engine has no adapters"));
        }
        let root = me.root(adapter, &context.tenant, &context.cache_salt);
        check_tokens("prompt_token_ids", self.prompt, me)?;
        if self.prompt.is_empty() {
            return Err(Fault::invalid("prompt_token_ids", "is empty"));
        }
        check_blocks(self.blocks, self.prompt, &root, me)?;
        let stop = self.stop.cloned().unwrap_or_default();
        let choices = choices(self.choices, me)?;
        let params = sampling(self.sampling, &stop, me);
        params.validate(me.spec.vocab_size).map_err(|error| {
            Fault::invalid(error.parameter, format!("{} must be {}", error.value, error.limit))
        })?;
        let limit = me.spec.context_length as u32;
        let max_tokens = stop.max_tokens.unwrap_or(limit).min(limit);
        if max_tokens == 0 {
            return Err(Fault::invalid("max_tokens", "0 is below the minimum of 1"));
        }
        Ok(Parsed {
            worker: present,
            prompt: self.prompt.into(),
            root: Arc::new(root),
            reservation,
            choices,
            stop: StopRule {
                max_tokens,
                min_tokens: stop.min_tokens,
                stop_token_ids: params.stop_token_ids.iter().chain(&params.end_token_ids).copied().collect(),
            },
            seed: self.sampling.and_then(|sampling| sampling.seed).unwrap_or_default(),
            wants_logprobs: params.logprobs.is_some(),
            ignore_eos: stop.ignore_eos,
            params,
            migrated: context.migrated,
            priority: Priority(context.priority.clamp(i8::MIN.into(), i8::MAX.into()) as i8),
        })
    }
}

fn reservation(field: &str, wire: Option<&inference::ReservationKey>) -> Result<ReservationKey, Fault> {
    let wire = wire.ok_or_else(|| Fault::invalid(field, "is missing"))?;
    ReservationKey::try_from(wire).map_err(|error| Fault::invalid(field, error.to_string()))
}

fn key(ReservationKey { id, attempt }: ReservationKey) -> ids::ReservationKey {
    ids::ReservationKey { id, attempt }
}

/// Which choices of which Generate are to end.
pub(super) fn ended_choices(
    request: &wire::EndChoicesRequest,
) -> Result<(ids::ReservationKey, &[u32]), Fault> {
    let reservation = reservation("reservation", request.reservation.as_ref())?;
    if request.choices.is_empty() || request.choices.len() > MAX_CHOICES {
        let text = format!("{} choices, 1 to {MAX_CHOICES} can be ended", request.choices.len());
        return Err(Fault::invalid("choices", text));
    }
    Ok((key(reservation), &request.choices))
}

fn check_target(
    worker: Option<&kv::WorkerRank>,
    context: &inference::RequestContext,
    me: &Identity,
    present: WorkerRank,
) -> Result<(), Fault> {
    let worker = WorkerRank::from(worker.copied().ok_or_else(|| Fault::invalid("worker", "is missing"))?);
    if worker != present {
        let text = format!("this is {present}, not {worker}: look it up again");
        return Err(Fault::new(Reason::InstanceFenced, text).resource("worker", worker.to_string()));
    }
    if context.model_digest.as_ref() != me.spec.model_digest {
        return Err(Fault::new(Reason::ModelMismatch, format!("this worker serves {}", me.spec.name)));
    }
    Ok(())
}

fn check_tokens(field: &str, tokens: &[u32], me: &Identity) -> Result<(), Fault> {
    match tokens.iter().find(|token| **token as usize >= me.spec.vocab_size) {
        None => Ok(()),
        Some(token) => {
            let text =
                format!("token id {token} is not below the vocabulary's size of {}", me.spec.vocab_size);
            Err(Fault::invalid(field, text))
        }
    }
}

/// First and last sequence hash must be the ones that this worker computes.
fn check_blocks(
    check: Option<&wire::BlockCheck>,
    prompt: &[u32],
    root: &CacheRoot,
    me: &Identity,
) -> Result<(), Fault> {
    let check = check.ok_or_else(|| Fault::invalid("blocks", "is missing"))?;
    if check.hash_scheme != HASH_SCHEME {
        let text = format!("hash scheme {:?} is not {HASH_SCHEME:?}", check.hash_scheme);
        return Err(Fault::new(Reason::HashSchemeMismatch, text));
    }
    if check.block_size as usize != me.block_size() {
        let text = format!("blocks of {} tokens, this worker has {}", check.block_size, me.block_size());
        return Err(Fault::new(Reason::BlockSizeMismatch, text));
    }
    let hashes = sequence_hashes(root_key(root), me.block_size(), prompt);
    if (check.first, check.last) != (hashes.first().copied(), hashes.last().copied()) {
        return Err(Fault::new(
            Reason::HashMismatch,
            "the prompt's first or last sequence hash is not the one this worker computes",
        ));
    }
    Ok(())
}

fn choices(choices: &[wire::ChoiceStart], me: &Identity) -> Result<Vec<ResumedChoice>, Fault> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err(Fault::invalid(
            "choices",
            format!("{} choices, 1 to {MAX_CHOICES} can be had", choices.len()),
        ));
    }
    for choice in choices {
        check_tokens("choices.generated_token_ids", &choice.generated_token_ids, me)?;
    }
    let resumed = |choice: &wire::ChoiceStart| ResumedChoice {
        index: choice.index,
        generated: choice.generated_token_ids.clone(),
    };
    Ok(choices.iter().map(resumed).collect())
}

fn sampling(
    sampling: Option<&inference::SamplingParams>,
    stop: &inference::StopConditions,
    me: &Identity,
) -> SamplingParams {
    let default = SamplingParams::default();
    let wire = sampling.cloned().unwrap_or_default();
    let end_token_ids = if stop.ignore_eos { Vec::new() } else { me.spec.eos_token_ids.clone() };
    let mut logit_bias: Vec<(u32, f32)> = wire.logit_bias.into_iter().collect();
    // A map has no order; sampling must.
    logit_bias.sort_unstable_by_key(|(token, _)| *token);
    let logprobs = wire.logprobs.map(|count| u8::try_from(count).unwrap_or(u8::MAX));
    SamplingParams {
        temperature: wire.temperature.unwrap_or(default.temperature),
        top_k: wire.top_k.unwrap_or(default.top_k),
        top_p: wire.top_p.unwrap_or(default.top_p),
        min_p: wire.min_p.unwrap_or(default.min_p),
        presence_penalty: wire.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: wire.frequency_penalty.unwrap_or(default.frequency_penalty),
        repetition_penalty: wire.repetition_penalty.unwrap_or(default.repetition_penalty),
        logit_bias,
        min_tokens: stop.min_tokens,
        stop_token_ids: stop.stop_token_ids.clone(),
        end_token_ids,
        logprobs,
    }
}

/// A sampled token on the wire; log-probabilities only where they were asked for.
pub(super) fn token_info(sampled: &Sampled, wants_logprobs: bool) -> inference::TokenInfo {
    inference::TokenInfo {
        token_id: sampled.token,
        logprob: wants_logprobs.then_some(sampled.logprob),
        top: sampled
            .top
            .iter()
            .map(|(token_id, logprob)| inference::TokenAlternative { token_id: *token_id, logprob: *logprob })
            .collect(),
    }
}

/// A token from the wire.
pub(super) fn sampled(info: &inference::TokenInfo) -> Sampled {
    Sampled {
        token: info.token_id,
        logprob: info.logprob.unwrap_or_default(),
        top: info.top.iter().map(|top| (top.token_id, top.logprob)).collect(),
    }
}

/// Why a choice ended, on the wire.
pub(super) fn finish_reason(finish: FinishReason) -> inference::FinishReason {
    match finish {
        FinishReason::Stop(_) => inference::FinishReason::Stop,
        FinishReason::Length => inference::FinishReason::Length,
        FinishReason::Migrate => inference::FinishReason::Migrate,
        FinishReason::Cancelled => inference::FinishReason::Cancelled,
        FinishReason::Deadline | FinishReason::Error => inference::FinishReason::Error,
    }
}

/// Usage on the wire, with what a prefill worker computed.
pub(super) fn usage(usage: &Usage, remote_computed: u32) -> inference::Usage {
    let cached = usage.cached as u32;
    inference::Usage {
        prompt_tokens: usage.prompt_tokens as u32,
        completion_tokens: usage.generated as u32,
        cached_tokens: cached,
        transferred_tokens: usage.transferred as u32,
        computed_tokens: usage.computed as u32,
        cached_by_tier: (cached > 0)
            .then(|| inference::CachedTokens { tier: kv::Tier::Device.into(), tokens: cached })
            .into_iter()
            .collect(),
        remote_computed_tokens: remote_computed,
    }
}

/// A settlement on the wire.
pub(super) fn settlement(settlement: Settlement) -> wire::Settlement {
    match settlement {
        Settlement::Admitted => wire::Settlement::Admitted,
        Settlement::Refused => wire::Settlement::Refused,
        Settlement::Finished => wire::Settlement::Finished,
    }
}

/// A duration on the wire.
pub(super) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: duration.as_secs() as i64, nanos: duration.subsec_nanos() as i32 }
}

/// A load report's rank on the wire. `kv` is the set as its last batch left it.
pub(super) fn rank_state(report: &LoadReport, kv: KvState, counters: Counters) -> wire::RankState {
    let ms = |seconds: f64| seconds * 1e3;
    wire::RankState {
        dp_rank: 0,
        running: report.running as u32,
        waiting: report.waiting as u32,
        uncomputed_prefill_tokens: report.uncomputed_prefill_tokens,
        blocks_active: report.blocks_active as u32,
        blocks_cached: report.blocks_cached as u32,
        blocks_free: report.blocks_free as u32,
        next_victim_age: report.next_victim_age.map(duration),
        step_model: Some(wire::StepModel {
            base_ms: ms(report.step.constant),
            per_prefill_token_ms: ms(report.step.prefill_token),
            per_decode_row_ms: ms(report.step.decode_row),
            per_context_token_ms: ms(report.step.attention),
            observations: counters.steps,
        }),
        warm_peers: Vec::new(),
        blocks_quarantined: report.blocks_quarantined as u32,
        kv_count: kv.count,
        kv_digest: kv.digest,
        kv_batch: kv.batch,
        computed_prompt_tokens: counters.prompt_tokens_computed,
        generated_tokens: counters.tokens_generated,
    }
}
