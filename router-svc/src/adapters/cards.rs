//! A worker in the domain's terms, from its registration and its card.

use std::collections::BTreeMap;
use std::sync::Arc;

use armature_contracts::discovery::v1::{ModelCard, Role, StepPrior as PriorMessage};
use armature_contracts::ids::WorkerRank;
use armature_svc_kit::discovery_client::{Instance, Status as Seen};

use super::worker_messages::BlockNaming;
use crate::domain::fit::StepFit;
use crate::domain::step_cost::StepPrior;
use crate::domain::units::{BlockSize, Blocks, Millis, Tokens};
use crate::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};

/// Most ranks of an instance: one per data-parallel replica.
const MAX_RANKS: u32 = 1024;

/// A worker that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWorker {
    /// Nothing to connect to.
    #[error("it has no usable grpc address")]
    Address,
    /// A field without which nothing can be decided.
    #[error("its card says {value} for {field}")]
    Card {
        /// Which.
        field: &'static str,
        /// What it says.
        value: u64,
    },
}

/// Every rank of an instance, by rank.
pub fn workers(instance: &Instance, card: &ModelCard) -> Result<Vec<Worker>, BadWorker> {
    let address: Arc<str> = instance.grpc().ok_or(BadWorker::Address)?.to_string().into();
    let positive = [
        ("block_size", card.block_size),
        ("kv_blocks", card.kv_blocks),
        ("context_length", card.context_length),
    ];
    if let Some((field, value)) = positive.into_iter().find(|(_, value)| *value == 0) {
        return Err(BadWorker::Card { field, value: value.into() });
    }
    if card.dp_rank_count > MAX_RANKS {
        return Err(BadWorker::Card { field: "dp_rank_count", value: card.dp_rank_count.into() });
    }
    let limits = card.limits.unwrap_or_default();
    let compat_key = card.layout.as_ref().map(|layout| digest(&layout.compat_key)).unwrap_or_default();
    let worker = Worker {
        rank: WorkerRank { instance: instance.id, dp_rank: card.dp_rank_start },
        address,
        status: status(instance.status),
        namespace: instance.namespace.as_str().into(),
        served_name: card.served_name.as_str().into(),
        set: ServedSet {
            model: digest(&card.model_digest),
            tokenizer: digest(&card.tokenizer_digest),
            template: digest(&card.template_digest),
        },
        roles: roles(card),
        engine: card.engine.as_str().into(),
        labels: Arc::new(instance.labels.iter().map(own).collect::<BTreeMap<_, _>>()),
        context_length: Tokens(card.context_length.into()),
        block_size: BlockSize(card.block_size),
        kv_blocks: Blocks(card.kv_blocks),
        spec_hash: card.spec_hash.as_str().into(),
        capabilities: Arc::new(card.capabilities.iter().cloned().collect()),
        compat_key,
        hash_scheme: card.hash_scheme.as_str().into(),
        limits: Limits {
            max_running: limits.max_running,
            max_waiting: limits.max_waiting,
            max_batched_tokens: limits.max_batched_tokens,
        },
        weight: weight(card.weight),
        prior: card.step_prior.as_ref().map(prior).unwrap_or_default(),
        fit: StepFit::default(),
    };
    let ranks = (0..card.dp_rank_count.max(1)).map(|offset| {
        let dp_rank = card.dp_rank_start.saturating_add(offset);
        Worker { rank: WorkerRank { instance: instance.id, dp_rank }, ..worker.clone() }
    });
    Ok(ranks.collect())
}

/// How a worker names its blocks.
pub fn naming(worker: &Worker) -> BlockNaming {
    BlockNaming { scheme: worker.hash_scheme.clone(), block_size: worker.block_size }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

fn status(seen: Seen) -> Status {
    match seen {
        Seen::Ready => Status::Ready,
        Seen::Suspect => Status::Suspect,
        Seen::Draining => Status::Draining,
        Seen::Starting | Seen::Unspecified => Status::Starting,
    }
}

fn roles(card: &ModelCard) -> Roles {
    let mut roles = Roles::default();
    for role in card.roles() {
        match role {
            Role::Aggregated => roles.aggregated = true,
            Role::Prefill => roles.prefill = true,
            Role::Decode => roles.decode = true,
            Role::Unspecified => {}
        }
    }
    roles
}

fn weight(weight: f32) -> f64 {
    if weight.is_finite() && weight > 0.0 { f64::from(weight) } else { 1.0 }
}

/// A card without any prefill or decode time has no prior to use.
fn prior(message: &PriorMessage) -> StepPrior {
    let default = StepPrior::default();
    let prefill = [message.prefill_a2, message.prefill_a1, message.prefill_a0];
    let decode = [message.decode_d2, message.decode_d1, message.decode_d0];
    let unset = |terms: [f64; 3]| terms == [0.0; 3];
    StepPrior {
        prefill: if unset(prefill) { default.prefill } else { prefill },
        decode: if unset(decode) { default.decode } else { decode },
        transfer_per_token: Millis(message.transfer_ms_per_token),
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use armature_svc_kit::address::Address;
    use armature_svc_kit::discovery_client::Component;

    fn instance() -> Instance {
        Instance::starting(InstanceId(7), "default", Component::Worker, &Address::mem("worker"))
    }

    fn card() -> ModelCard {
        ModelCard { block_size: 16, kv_blocks: 100, context_length: 1000, ..Default::default() }
    }

    #[test]
    fn an_instance_is_as_many_workers_as_it_has_ranks() {
        let card = ModelCard { dp_rank_start: 2, dp_rank_count: 3, weight: f32::NAN, ..card() };
        let workers = workers(&instance(), &card).unwrap();
        assert_eq!(workers.iter().map(|worker| worker.rank.dp_rank).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!((workers[0].weight, workers[0].prior), (1.0, StepPrior::default()));
        assert_eq!(workers[0].status, Status::Starting);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let zero = ModelCard { block_size: 0, ..card() };
        assert_eq!(workers(&instance(), &zero).unwrap_err().to_string(), "its card says 0 for block_size");
        let mut nowhere = instance();
        nowhere.addresses.clear();
        assert_eq!(workers(&nowhere, &card()), Err(BadWorker::Address));
    }
}
