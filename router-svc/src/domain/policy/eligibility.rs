//! Who may be chosen at all.

use super::{Candidate, Question};
use crate::domain::units::Side;
use crate::domain::worker::Status;

/// Why a worker of the set is not eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// Another role.
    Role,
    /// Another worker is pinned.
    NotPinned,
    /// Only pinned workers are taken, and nobody is.
    NoPin,
    /// The request excludes it.
    Excluded,
    /// The request allows others only.
    NotAllowed,
    /// Not yet serving.
    Starting,
    /// Takes no new work.
    Draining,
    /// A label is missing or different.
    Labels,
    /// It does not have the request's adapter.
    Adapter,
    /// Hash scheme differs from the request's.
    HashScheme,
    /// Block size differs from the request's.
    BlockSize,
    /// The prompt does not fit its context.
    Context,
    /// The prompt does not fit its pool.
    Pool,
    /// It runs and queues all it may.
    Full,
    /// The deployment forbids local prefill, and no prefill worker matches it.
    NoPrefill,
    /// KV of other form than the decode worker's.
    Incompatible,
    /// Of another deployment revision than the decode worker, or the other way round.
    Revision,
    /// The request wants the prompt computed on the decode worker.
    LocalWanted,
}

impl Exclusion {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Role => "of another role",
            Self::NotPinned => "not the pinned worker",
            Self::NoPin => "not pinned",
            Self::Excluded => "excluded by the request",
            Self::NotAllowed => "not among those that the request allows",
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::Labels => "without a label that the request asks for",
            Self::Adapter => "without the adapter",
            Self::HashScheme => "of another hash scheme",
            Self::BlockSize => "of another block size",
            Self::Context => "of too short a context",
            Self::Pool => "of too small a KV pool",
            Self::Full => "full",
            Self::NoPrefill => "without a prefill worker, and may not prefill itself",
            Self::Incompatible => "of an incompatible KV layout",
            Self::Revision => "of another deployment revision",
            Self::LocalWanted => "not wanted: the request asks for local prefill",
        }
    }
}

/// Why `candidate` may not take `side` of the request, as far as that depends on it alone and is the same for every policy.
pub fn exclusion(question: &Question, side: Side, candidate: &Candidate) -> Option<Exclusion> {
    let worker = &candidate.worker;
    let constraints = &question.constraints;
    let has_role = match side {
        Side::Decode => worker.roles.leads(),
        Side::Prefill => worker.roles.prefill,
    };
    if !has_role {
        return Some(Exclusion::Role);
    }
    if constraints.pinned_elsewhere(side, worker.rank) {
        return Some(Exclusion::NotPinned);
    }
    if !constraints.allow.is_empty() && !constraints.allow.contains(&worker.rank) {
        return Some(Exclusion::NotAllowed);
    }
    if constraints.exclude.contains(&worker.rank) {
        return Some(Exclusion::Excluded);
    }
    match worker.status {
        Status::Starting => return Some(Exclusion::Starting),
        Status::Draining => return Some(Exclusion::Draining),
        Status::Ready | Status::Suspect => {}
    }
    let carries = |(name, value): (&String, &String)| worker.labels.get(name) == Some(value);
    if !constraints.labels.iter().all(carries) {
        return Some(Exclusion::Labels);
    }
    if constraints.adapter.as_ref().is_some_and(|adapter| !worker.capabilities.contains(adapter.capability()))
    {
        return Some(Exclusion::Adapter);
    }
    if let Some((scheme, size)) = &question.hashes {
        // A worker without a scheme publishes no blocks that could be confused.
        if !worker.hash_scheme.is_empty() && worker.hash_scheme != *scheme {
            return Some(Exclusion::HashScheme);
        }
        if worker.block_size != *size {
            return Some(Exclusion::BlockSize);
        }
    }
    // A prompt that fills the context leaves no room for an answer.
    if question.prompt >= worker.context_length {
        return Some(Exclusion::Context);
    }
    if question.prompt > worker.capacity() {
        return Some(Exclusion::Pool);
    }
    candidate.load.full(worker, question.migrated).then_some(Exclusion::Full)
}
