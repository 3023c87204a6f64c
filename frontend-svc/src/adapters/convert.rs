//! Requests and answers of routers and workers, between our words and the wire's.

use std::time::Duration;

use armature_contracts::{
    inference::v1 as inference, kv::v1 as kv, router::v1 as router, worker::v1 as worker,
};
use armature_kv_hash::HASH_SCHEME;
use armature_svc_kit::call::Call;
use tonic::Request;

use crate::domain::leg::LegPlan;
use crate::domain::text::Token;
use crate::ports::{Decision, End, Phases, Target, WorkerEvent};
use crate::session::prepare::Prepared;

/// A call made for `call`: its deadline, request id and trace travel with it.
pub fn request<T>(message: T, call: &Call) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(call.clone());
    request
}

/// What travels with the request.
pub fn context(request: &Prepared, plan: &LegPlan) -> inference::RequestContext {
    let session = (!request.session.id.is_empty()).then(|| inference::Session {
        id: request.session.id.clone(),
        hint: match request.session.continues {
            Some(true) => inference::SessionHint::Continues,
            Some(false) => inference::SessionHint::Ends,
            None => inference::SessionHint::Unspecified,
        }
        .into(),
    });
    inference::RequestContext {
        request_id: request.caller.request_id().to_owned(),
        reservation: Some(plan.reservation.into()),
        tenant: request.caller.tenant.clone(),
        cache_salt: request.params.cache_salt.clone(),
        model_digest: request.set.key.model.0.clone(),
        priority: request.priority,
        adapter: None,
        session,
        budget: None,
        migrated: plan.migrated,
    }
}

/// The question to a router.
pub fn route(request: &Prepared, plan: &LegPlan) -> router::RouteRequest {
    let generated = u32::try_from(plan.generated()).unwrap_or(u32::MAX);
    let prompt = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX);
    let pin = request.caller.pin.filter(|_| plan.is_first());
    router::RouteRequest {
        context: Some(context(request, plan)),
        namespace: request.namespace.clone(),
        model_digest: request.set.key.model.0.clone(),
        tokenizer_digest: request.set.key.tokenizer.0.clone(),
        template_digest: request.set.key.template.0.clone(),
        prompt_tokens: prompt.saturating_add(generated),
        prompt: Some(kv::BlockHashes {
            hash_scheme: HASH_SCHEME.to_owned(),
            block_size: request.set.block_size,
            sequence_hashes: request.hashes.clone(),
        }),
        expected_output_tokens: request.params.max_tokens.unwrap_or(0).saturating_sub(generated),
        choices: u32::try_from(plan.choices.len()).unwrap_or(u32::MAX),
        constraints: Some(router::Constraints {
            pin_decode: pin.map(|it| it.decode.into()),
            pin_prefill: pin.and_then(|it| it.prefill).map(Into::into),
            exclude: plan.exclude.iter().map(|worker| (*worker).into()).collect(),
            ..Default::default()
        }),
        generated_tokens: generated,
        overrides: None,
    }
}

/// Leaves the choice to the router; false when nobody was pinned.
pub fn unpin(question: &mut router::RouteRequest) -> bool {
    let Some(constraints) = &mut question.constraints else { return false };
    let (decode, prefill) = (constraints.pin_decode.take(), constraints.pin_prefill.take());
    decode.is_some() || prefill.is_some()
}

/// Whether only certain workers are to be chosen.
pub fn is_pinned(question: &router::RouteRequest) -> bool {
    let constraints = question.constraints.as_ref();
    constraints.is_some_and(|it| it.pin_decode.is_some() || it.pin_prefill.is_some())
}

/// The question of a request that may wait so long for a worker that has room.
pub fn queueing(question: router::RouteRequest, max_queue: Duration) -> router::RouteRequest {
    let mut context = question.context.unwrap_or_default();
    // What is too long for the wire is no limit.
    context.budget =
        max_queue.try_into().ok().map(|wait| inference::Budget { max_queue: Some(wait), attempts_left: 0 });
    router::RouteRequest { context: Some(context), ..question }
}

/// A router's answer; `None` when it names no decode worker.
pub fn decision(answer: router::RouteResponse, router: &str) -> Option<Decision> {
    let target = |it: router::Target| Some(Target { worker: it.worker?.into(), address: it.address });
    Some(Decision {
        decode: target(answer.decode?)?,
        prefill: answer.prefill.into_iter().filter_map(target).collect(),
        local_prefill_forbidden: answer.local_prefill_forbidden,
        decision_id: answer.decision_id,
        router: router.to_owned(),
    })
}

/// The work for a worker.
pub fn generate(request: &Prepared, plan: &LegPlan, decision: &Decision) -> worker::GenerateRequest {
    let sampling = &request.params.sampling;
    worker::GenerateRequest {
        context: Some(context(request, plan)),
        worker: Some(decision.decode.worker.into()),
        prompt_token_ids: request.tokens.clone(),
        blocks: Some(worker::BlockCheck {
            hash_scheme: HASH_SCHEME.to_owned(),
            block_size: request.set.block_size,
            first: request.hashes.first().copied(),
            last: request.hashes.last().copied(),
        }),
        sampling: Some(inference::SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            logit_bias: sampling.logit_bias.iter().map(|(id, bias)| (*id, *bias)).collect(),
            seed: sampling.seed,
            logprobs: sampling.logprobs,
        }),
        stop: Some(inference::StopConditions {
            max_tokens: Some(request.max_tokens),
            min_tokens: request.params.min_tokens,
            stop_token_ids: request.params.stop_token_ids.clone(),
            ignore_eos: request.params.ignore_eos,
        }),
        choices: plan
            .choices
            .iter()
            .map(|(index, tokens)| worker::ChoiceStart { index: *index, generated_token_ids: tokens.clone() })
            .collect(),
        prefill: decision
            .prefill
            .iter()
            .map(|it| worker::PrefillTarget { worker: Some(it.worker.into()), address: it.address.clone() })
            .collect(),
        local_prefill_forbidden: decision.local_prefill_forbidden,
    }
}

/// A worker's message; `None` for one of a newer version.
pub fn event(message: worker::GenerateResponse) -> Option<WorkerEvent> {
    use worker::generate_response::Event;
    Some(match message.event? {
        Event::Started(started) => WorkerEvent::Started { cached_tokens: started.cached_tokens },
        Event::Delta(delta) => WorkerEvent::Tokens {
            choice: delta.choice,
            position: delta.position,
            end: end(delta.finish_reason()),
            tokens: delta.tokens.into_iter().map(token).collect(),
        },
        Event::Finished(finished) => {
            let usage = finished.usage.unwrap_or_default();
            WorkerEvent::Finished(Phases {
                cached: usage.cached_tokens,
                transferred: usage.transferred_tokens,
                computed: usage.computed_tokens,
                remote_computed: usage.remote_computed_tokens,
            })
        }
    })
}

fn end(reason: inference::FinishReason) -> Option<End> {
    match reason {
        inference::FinishReason::Unspecified => None,
        inference::FinishReason::Stop => Some(End::Stop),
        inference::FinishReason::Length => Some(End::Length),
        inference::FinishReason::Migrate => Some(End::Migrate),
        inference::FinishReason::Cancelled => Some(End::Cancelled),
        inference::FinishReason::Error => Some(End::Failed),
    }
}

fn token(info: inference::TokenInfo) -> Token {
    Token {
        id: info.token_id,
        logprob: info.logprob,
        top: info.top.into_iter().map(|it| (it.token_id, it.logprob)).collect(),
    }
}

/// `call` with a deadline of at most `limit` from now.
pub fn within(call: &Call, limit: Duration) -> Call {
    let own = tokio::time::Instant::now() + limit;
    Call { deadline: Some(call.deadline.map_or(own, |deadline| deadline.min(own))), ..call.clone() }
}
