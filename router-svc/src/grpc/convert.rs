//! Messages of the router's own service in the domain's terms, and back.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_contracts::kv::v1::BlockHashes;
use armature_contracts::kv_hash::HASH_SCHEME;
use armature_contracts::router::v1 as wire;
use armature_contracts::{inference, kv};

use crate::domain::backlog::Claim;
use crate::domain::explain::{CandidateScore, DecisionNumber, Explanation};
use crate::domain::policy::{Adapter, Constraints, Overrides, PrefillChoice, Question, SessionKey};
use crate::domain::router::{Request, Routed, Target, WorkerView};
use crate::domain::units::{BlockSize, Millis, SequenceHash, Time, Tokens};
use crate::domain::worker::{Digest, ServedSet};

/// Most choices of a request.
pub const MAX_CHOICES: u32 = 128;
/// Most excluded workers of a request (one per attempt, with room), and most allowed ones.
pub const MAX_NAMED: usize = 1024;
/// Most labels of a request.
pub const MAX_LABELS: usize = 64;
/// Most bytes of a label's name or value, of a session's id and of an adapter's name.
pub const MAX_TEXT: usize = 256;
/// Most keys of a Release.
pub const MAX_RELEASED: usize = 1024;

/// Longest name of a tenant.
pub const MAX_TENANT_BYTES: usize = 256;
/// Of a call's time, what its answer needs to arrive.
const ANSWER: Duration = Duration::from_millis(50);

/// A request to be routed.
pub fn request(message: wire::RouteRequest) -> Result<Request, Fault> {
    let context = message.context.as_ref();
    let key = context.and_then(|context| context.reservation.as_ref());
    let key = reservation("context.reservation", key)?;
    let prompt = Tokens(u64::from(message.prompt_tokens));
    if prompt.0 == 0 {
        return Err(Fault::invalid("prompt_tokens", "a prompt has at least one token"));
    }
    if message.model_digest.is_empty() {
        return Err(Fault::invalid("model_digest", "is missing"));
    }
    if message.choices > MAX_CHOICES {
        return Err(Fault::invalid(
            "choices",
            format!("{} is above the limit of {MAX_CHOICES}", message.choices),
        ));
    }
    let (hashes, blocks) = block_hashes(message.prompt, prompt)?;
    let namespace = if message.namespace.is_empty() { "default" } else { &message.namespace };
    let question = Question {
        namespace: namespace.into(),
        set: ServedSet {
            model: digest(&message.model_digest),
            tokenizer: digest(&message.tokenizer_digest),
            template: digest(&message.template_digest),
        },
        prompt,
        hashes,
        choices: message.choices.max(1),
        migrated: context.is_some_and(|context| context.migrated),
        expected_output: (message.expected_output_tokens > 0)
            .then(|| Tokens(u64::from(message.expected_output_tokens))),
        constraints: Constraints {
            adapter: adapter(context)?,
            session: session(context)?,
            overrides: overrides("overrides", message.overrides.unwrap_or_default())?,
            ..constraints(message.constraints.unwrap_or_default())?
        },
    };
    Ok(Request { key, question: Arc::new(question), prompt: blocks })
}

/// What a request may claim of the backlog: it may wait as long as its budget says, `left` of its deadline allows, and at most `max_wait`.
pub fn claim(
    message: &wire::RouteRequest,
    left: Option<Duration>,
    max_wait: Duration,
    now: Time,
) -> Result<Claim, Fault> {
    let context = message.context.as_ref();
    let tenant = context.map_or("", |context| context.tenant.as_str());
    if tenant.len() > MAX_TENANT_BYTES {
        let problem = format!("{} bytes are above the limit of {MAX_TENANT_BYTES}", tenant.len());
        return Err(Fault::invalid("context.tenant", problem));
    }
    let budget = context.and_then(|context| context.budget.as_ref()?.max_queue);
    let budget = match budget {
        Some(budget) => Duration::try_from(budget)
            .map_err(|_| Fault::invalid("context.budget.max_queue", "must not be negative"))?,
        None => max_wait,
    };
    // The answer must be there before the call is cut off at its deadline.
    let left = left.map_or(max_wait, |left| left.saturating_sub(ANSWER));
    let until = now.after(budget.min(left).min(max_wait));
    Ok(Claim { tenant: tenant.into(), priority: context.map_or(0, |context| context.priority), until })
}

type Naming = Option<(Arc<str>, BlockSize)>;

fn block_hashes(list: Option<BlockHashes>, prompt: Tokens) -> Result<(Naming, Arc<[SequenceHash]>), Fault> {
    let Some(list) = list else { return Ok((None, Arc::new([]))) };
    if list.hash_scheme != HASH_SCHEME {
        let text = format!("block hashes by {:?}, but this router indexes {HASH_SCHEME}", list.hash_scheme);
        return Err(Fault::new(Reason::HashSchemeMismatch, text));
    }
    let size = BlockSize(list.block_size);
    if size.0 == 0 {
        return Err(Fault::invalid("prompt.block_size", "a block has at least one token"));
    }
    let full = size.full(prompt).0 as usize;
    if list.sequence_hashes.len() > full {
        let problem = format!("{} hashes for {full} full blocks", list.sequence_hashes.len());
        return Err(Fault::invalid("prompt.sequence_hashes", problem));
    }
    let blocks = list.sequence_hashes.into_iter().map(SequenceHash).collect();
    Ok((Some((list.hash_scheme.into(), size)), blocks))
}

fn adapter(context: Option<&inference::v1::RequestContext>) -> Result<Option<Adapter>, Fault> {
    let Some(adapter) = context.and_then(|context| context.adapter.as_ref()) else { return Ok(None) };
    text("context.adapter.name", &adapter.name)?;
    Ok((!adapter.name.is_empty()).then(|| Adapter::named(&adapter.name)))
}

fn session(context: Option<&inference::v1::RequestContext>) -> Result<Option<SessionKey>, Fault> {
    let Some(context) = context else { return Ok(None) };
    let Some(session) = &context.session else { return Ok(None) };
    text("context.session.id", &session.id)?;
    Ok(SessionKey::of(&context.tenant, &session.id))
}

/// Weights of the field `name`.
pub fn overrides(name: &str, message: wire::Overrides) -> Result<Overrides, Fault> {
    let weights =
        [("kappa", message.kappa), ("eta", message.eta), ("temperature_ms", message.temperature_ms)];
    if let Some((field, _)) = weights.into_iter().find(|(_, weight)| weight.is_some_and(f64::is_nan)) {
        return Err(Fault::invalid(format!("{name}.{field}"), "is not a number"));
    }
    let temperature = message.temperature_ms.map(Millis);
    Ok(Overrides { kappa: message.kappa, eta: message.eta, temperature }.clamped())
}

fn text(field: &str, text: &str) -> Result<(), Fault> {
    if text.len() > MAX_TEXT {
        let problem = format!("{} bytes are above the limit of {MAX_TEXT}", text.len());
        return Err(Fault::invalid(field, problem));
    }
    Ok(())
}

fn at_most(field: &str, entries: usize, limit: usize) -> Result<(), Fault> {
    if entries > limit {
        return Err(Fault::invalid(field, format!("{entries} entries are above the limit of {limit}")));
    }
    Ok(())
}

fn constraints(message: wire::Constraints) -> Result<Constraints, Fault> {
    at_most("constraints.exclude", message.exclude.len(), MAX_NAMED)?;
    at_most("constraints.allow", message.allow.len(), MAX_NAMED)?;
    at_most("constraints.labels", message.labels.len(), MAX_LABELS)?;
    for (name, value) in &message.labels {
        text("constraints.labels", name)?;
        text("constraints.labels", value)?;
    }
    let prefill = match message.prefill() {
        wire::PrefillChoice::Unspecified => PrefillChoice::ByCost,
        wire::PrefillChoice::Remote => PrefillChoice::Remote,
        wire::PrefillChoice::Local => PrefillChoice::Local,
    };
    Ok(Constraints {
        labels: message.labels.into_iter().collect(),
        pin_decode: message.pin_decode.map(WorkerRank::from),
        pin_prefill: message.pin_prefill.map(WorkerRank::from),
        allow: message.allow.into_iter().map(WorkerRank::from).collect(),
        exclude: message.exclude.into_iter().map(WorkerRank::from).collect(),
        prefill,
        ..Constraints::default()
    })
}

/// Keys to release.
pub fn released(message: &wire::ReleaseRequest) -> Result<Vec<ReservationKey>, Fault> {
    at_most("reservations", message.reservations.len(), MAX_RELEASED)?;
    message.reservations.iter().map(|key| reservation("reservations", Some(key))).collect()
}

fn reservation(field: &str, key: Option<&inference::v1::ReservationKey>) -> Result<ReservationKey, Fault> {
    let key = key.ok_or_else(|| Fault::invalid(field, "is missing"))?;
    ReservationKey::try_from(key).map_err(|error| Fault::invalid(field, error.to_string()))
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(bytes.into())
}

/// A decision of one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionId {
    /// The router.
    pub router: InstanceId,
    /// Which of its decisions.
    pub number: DecisionNumber,
}

impl std::fmt::Display for DecisionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.router, self.number.0)
    }
}

impl std::str::FromStr for DecisionId {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let wrong = || Fault::invalid("decision_id", format!("{text:?} is not a decision id"));
        let (router, number) = text.split_once('-').ok_or_else(wrong)?;
        Ok(Self {
            router: router.parse().map_err(|_| wrong())?,
            number: DecisionNumber(number.parse().map_err(|_| wrong())?),
        })
    }
}

/// An answer to Route.
pub fn routed(answer: &Routed, router: InstanceId) -> wire::RouteResponse {
    wire::RouteResponse {
        decode: Some(target(&answer.decode)),
        prefill: answer.prefill.iter().map(target).collect(),
        decision_id: DecisionId { router, number: answer.number }.to_string(),
        matched_blocks: answer.decode.matched.0,
        local_prefill_forbidden: answer.local_prefill_forbidden,
    }
}

fn target(target: &Target) -> wire::Target {
    wire::Target {
        worker: Some(target.rank.into()),
        address: target.address.to_string(),
        matched_blocks: target.matched.0,
    }
}

/// An answer to Explain.
pub fn explanation(id: DecisionId, explanation: &Explanation) -> wire::ExplainResponse {
    wire::ExplainResponse {
        decision_id: id.to_string(),
        policy: explanation.policy.name().into(),
        age: duration(explanation.age),
        decode: explanation.decode.iter().map(candidate).collect(),
        prefill: explanation.prefill.iter().map(candidate).collect(),
        reasons: explanation.reasons.clone(),
        prompt_tokens: u32::try_from(explanation.prompt.0).unwrap_or(u32::MAX),
        otherwise: explanation.otherwise.as_ref().map(|outcome| wire::Outcome {
            decode: outcome.decode.map(Into::into),
            prefill: outcome.prefill.iter().map(|rank| (*rank).into()).collect(),
        }),
    }
}

fn candidate(score: &CandidateScore) -> wire::Candidate {
    wire::Candidate {
        worker: Some(kv::v1::WorkerRank::from(score.worker)),
        chosen: score.chosen,
        excluded: score.excluded.map(|why| why.text().to_owned()).unwrap_or_default(),
        matched_blocks: score.matched.0,
        terms_ms: score.terms.iter().map(|(term, value)| (term.name().to_owned(), value)).collect(),
        cost_ms: score.cost,
        report_age: score.report_age.and_then(duration),
    }
}

/// A worker in ListWorkers.
pub fn worker_view(view: &WorkerView, now: Time) -> wire::WorkerView {
    let WorkerView { worker, report, pending, held, mark } = view;
    let age = report.as_ref().map(|report| now.since(report.received));
    let report = report.clone().unwrap_or_default();
    wire::WorkerView {
        worker: Some(worker.rank.into()),
        address: worker.address.to_string(),
        status: worker.status.as_str().into(),
        served_name: worker.served_name.to_string(),
        roles: worker.roles.names().into_iter().map(str::to_owned).collect(),
        engine: worker.engine.to_string(),
        running: report.running,
        waiting: report.waiting,
        uncomputed_prefill_tokens: report.uncomputed.0,
        blocks_active: report.active.0,
        blocks_cached: report.cached.0,
        blocks_free: report.free.0,
        blocks_total: worker.kv_blocks.0,
        unsettled_reservations: pending.legs,
        indexed_blocks: held.count,
        reported_blocks: mark.map_or(0, |mark| mark.count),
        index_known: mark.is_some(),
        report_age: age.and_then(duration),
    }
}

fn duration<T: TryFrom<Duration>>(duration: Duration) -> Option<T> {
    T::try_from(duration).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> wire::RouteRequest {
        let key = ReservationKey { id: 1, attempt: 1 };
        let context = inference::v1::RequestContext { reservation: Some(key.into()), ..Default::default() };
        let hashes =
            BlockHashes { hash_scheme: HASH_SCHEME.into(), block_size: 4, sequence_hashes: vec![1, 2] };
        wire::RouteRequest {
            context: Some(context),
            model_digest: vec![1].into(),
            prompt_tokens: 9,
            prompt: Some(hashes),
            ..Default::default()
        }
    }

    #[test]
    fn every_field_that_cannot_be_used_is_named() {
        assert!(request(valid()).is_ok());
        let broken = |change: fn(&mut wire::RouteRequest)| {
            let mut message = valid();
            change(&mut message);
            let fault = request(message).unwrap_err();
            fault
                .violations
                .first()
                .map_or_else(|| fault.reason.as_str().to_owned(), |(field, _)| field.clone())
        };
        assert_eq!(broken(|it| it.context = None), "context.reservation");
        assert_eq!(broken(|it| it.prompt_tokens = 0), "prompt_tokens");
        assert_eq!(broken(|it| it.model_digest = Default::default()), "model_digest");
        assert_eq!(broken(|it| it.choices = 129), "choices");
        assert_eq!(broken(|it| it.prompt_tokens = 7), "prompt.sequence_hashes");
        assert_eq!(broken(|it| it.prompt.as_mut().unwrap().block_size = 0), "prompt.block_size");
        assert_eq!(
            broken(|it| it.prompt.as_mut().unwrap().hash_scheme = "other".into()),
            "HASH_SCHEME_MISMATCH"
        );
        assert_eq!(
            broken(|it| it.constraints =
                Some(wire::Constraints { exclude: vec![Default::default(); 1025], ..Default::default() })),
            "constraints.exclude"
        );
        let constrained = |constraints: wire::Constraints| {
            let message = wire::RouteRequest { constraints: Some(constraints), ..valid() };
            request(message).unwrap_err().violations[0].0.clone()
        };
        let long = "x".repeat(257);
        assert_eq!(
            constrained(wire::Constraints { allow: vec![Default::default(); 1025], ..Default::default() }),
            "constraints.allow"
        );
        for labels in [
            (0..65).map(|n| (n.to_string(), String::new())).collect(),
            [(long.clone(), String::new())].into(),
            [(String::new(), long.clone())].into(),
        ] {
            assert_eq!(constrained(wire::Constraints { labels, ..Default::default() }), "constraints.labels");
        }
        let of = |change: fn(&mut inference::v1::RequestContext, String)| {
            let mut message = valid();
            change(message.context.as_mut().unwrap(), "x".repeat(257));
            request(message).unwrap_err().violations[0].0.clone()
        };
        assert_eq!(
            of(|it, name| it.adapter = Some(inference::v1::Adapter { name, ..Default::default() })),
            "context.adapter.name"
        );
        assert_eq!(
            of(|it, id| it.session = Some(inference::v1::Session { id, ..Default::default() })),
            "context.session.id"
        );
    }

    #[test]
    fn overrides_are_clamped_and_what_is_no_number_is_refused() {
        let of = |kappa, eta, temperature_ms| {
            request(wire::RouteRequest {
                overrides: Some(wire::Overrides { kappa, eta, temperature_ms }),
                ..valid()
            })
            .map(|request| request.question.constraints.overrides)
        };
        let nan = Some(f64::NAN);
        for (wrong, field) in [
            (of(nan, None, None), "overrides.kappa"),
            (of(None, nan, None), "overrides.eta"),
            (of(None, None, nan), "overrides.temperature_ms"),
        ] {
            assert_eq!(wrong.unwrap_err().violations[0].0, field);
        }
        assert_eq!(of(None, None, None).unwrap(), Overrides::default());
        let clamped = of(Some(f64::INFINITY), Some(-1.0), Some(9.3e18)).unwrap();
        let temperature = Some(Millis(60_000.0));
        assert_eq!(clamped, Overrides { kappa: Some(100.0), eta: Some(0.0), temperature });
    }

    #[test]
    fn decision_ids_read_back() {
        let id = DecisionId { router: InstanceId(0xab), number: DecisionNumber(12) };
        assert_eq!(id.to_string(), "00000000000000ab-12");
        assert_eq!(id.to_string().parse::<DecisionId>().unwrap(), id);
        for wrong in ["", "12", "ab-12", "00000000000000ab-x", "00000000000000ab"] {
            assert!(wrong.parse::<DecisionId>().is_err(), "{wrong}");
        }
    }
}
