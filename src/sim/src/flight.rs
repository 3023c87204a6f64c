//! A request between its arrival and its end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::ReservationKey;
use armature_kv_hash::{RootKey, RootParts, sequence_hashes};
use armature_router::domain::units::SequenceHash;
use armature_worker::domain::ids::{self, RequestId, WindowIndex};
use armature_worker::domain::request::{CacheRoot, RequestKind, ResumedChoice, StopRule, Submission};

use crate::request::{SimRequest, Text};
use crate::router_side::Destination;

/// A request in the fleet.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) arrived: Duration,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) answer: Text,
    pub(crate) output: u32,
    /// Tokens that have come.
    pub(crate) generated: u32,
    pub(crate) first_at: Duration,
    pub(crate) last_at: Duration,
    /// Prompt tokens that were in a cache when the request was first admitted.
    pub(crate) cached: u64,
    /// Decisions made for it; names the present one.
    pub(crate) attempt: u32,
    /// Whether a worker was lost with it.
    pub(crate) lost: bool,
    /// Who leads it now.
    pub(crate) leader: Option<(usize, RequestId)>,
    pub(crate) handoff: Option<Handoff>,
}

/// The prompt of a flight on its way from a prefill worker to its leader.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// Prefill workers that may still be tried.
    pub(crate) targets: VecDeque<usize>,
    pub(crate) local_prefill_forbidden: bool,
    /// First token that the leader lacks.
    pub(crate) from: usize,
    /// End of what it lacks.
    pub(crate) to: usize,
    /// Who computes.
    pub(crate) source: Option<(usize, RequestId)>,
    /// Tokens computed there.
    pub(crate) computed_to: usize,
    /// Windows granted and not landed.
    pub(crate) windows: VecDeque<(WindowIndex, Range<usize>)>,
    /// Whether the oldest window is on its way.
    pub(crate) moving: bool,
    pub(crate) landed_to: usize,
    /// Whether the first token has come.
    pub(crate) sampled: bool,
    /// Names a transfer: events of an older one are not looked at.
    pub(crate) transfer: u64,
}

impl Handoff {
    pub(crate) fn expected(destination: &Destination) -> Self {
        Self {
            targets: destination.prefill.iter().copied().collect(),
            local_prefill_forbidden: destination.local_prefill_forbidden,
            from: 0,
            to: 0,
            source: None,
            computed_to: 0,
            windows: VecDeque::new(),
            moving: false,
            landed_to: 0,
            sampled: false,
            transfer: 0,
        }
    }

    /// The leader has promised room for `tokens`: a transfer of this name may begin.
    pub(crate) fn admitted(&mut self, tokens: Range<usize>, transfer: u64) {
        (self.from, self.to, self.transfer) = (tokens.start, tokens.end, transfer);
        (self.computed_to, self.landed_to) = (tokens.start, tokens.start);
        (self.source, self.moving, self.sampled) = (None, false, false);
        self.windows.clear();
    }
}

impl Flight {
    pub(crate) fn new(request: &SimRequest, now: Duration) -> Self {
        Self {
            arrived: now,
            prompt: request.prompt.tokens(),
            answer: request.answer,
            output: request.output,
            generated: 0,
            first_at: Duration::ZERO,
            last_at: now,
            cached: 0,
            attempt: 0,
            lost: false,
            leader: None,
            handoff: None,
        }
    }

    /// Tokens of the prompt and of what has been generated.
    pub(crate) fn len(&self) -> usize {
        self.prompt.len() + self.generated as usize
    }

    fn generated(&self) -> Vec<u32> {
        self.answer.tokens(self.generated).collect()
    }

    /// Hashes of its full blocks.
    pub(crate) fn hashes(&self, root: RootKey, block_size: usize) -> Arc<[SequenceHash]> {
        let hashes = if self.generated == 0 {
            sequence_hashes(root, block_size, &self.prompt)
        } else {
            sequence_hashes(root, block_size, &[&self.prompt[..], &self.generated()].concat())
        };
        hashes.into_iter().map(SequenceHash).collect()
    }

    pub(crate) fn key(&self, number: u64) -> ReservationKey {
        ReservationKey { id: u128::from(number) + 1, attempt: self.attempt }
    }

    pub(crate) fn submission(&self, number: u64, kind: RequestKind, root: &Arc<CacheRoot>) -> Submission {
        let ReservationKey { id, attempt } = self.key(number);
        Submission {
            reservation: ids::ReservationKey { id, attempt },
            kind,
            prompt: Arc::clone(&self.prompt),
            choices: vec![ResumedChoice { index: 0, generated: self.generated() }],
            root: Arc::clone(root),
            stop: StopRule { max_tokens: self.output, min_tokens: 0, stop_token_ids: Arc::new([]) },
            priority: Default::default(),
            migrated: self.lost,
            deadline: None,
        }
    }
}

/// Whose KV all requests share.
pub(crate) fn cache_root() -> CacheRoot {
    CacheRoot {
        model_digest: vec![1; 32],
        adapter_digest: Vec::new(),
        tenant: String::new(),
        cache_salt: String::new(),
    }
}

/// What it is in hashes.
pub(crate) fn root_key(root: &CacheRoot) -> RootKey {
    RootKey::new(&RootParts {
        model_digest: &root.model_digest,
        adapter_digest: &root.adapter_digest,
        tenant: &root.tenant,
        cache_salt: &root.cache_salt,
    })
}
