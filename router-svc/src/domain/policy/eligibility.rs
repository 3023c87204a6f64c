//! Who may be chosen at all.

use super::{Candidate, Question, pin};
use crate::domain::units::Side;
use crate::domain::worker::Status;

/// Why a worker of the set is not eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// Another role.
    Role,
    /// Another worker is pinned.
    NotPinned,
    /// The request excludes it.
    Excluded,
    /// Not yet serving.
    Starting,
    /// Takes no new work.
    Draining,
    /// A label is missing or different.
    Labels,
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
    /// The request wants the prompt computed on the decode worker.
    LocalWanted,
}

impl Exclusion {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Role => "of another role",
            Self::NotPinned => "not the pinned worker",
            Self::Excluded => "excluded by the request",
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::Labels => "without a label that the request asks for",
            Self::HashScheme => "of another hash scheme",
            Self::BlockSize => "of another block size",
            Self::Context => "of too short a context",
            Self::Pool => "of too small a KV pool",
            Self::Full => "full",
            Self::NoPrefill => "without a prefill worker, and may not prefill itself",
            Self::Incompatible => "of an incompatible KV layout",
            Self::LocalWanted => "not wanted: the request asks for local prefill",
        }
    }
}

/// Whether `candidate` may take `side` of the request, as far as that depends on it alone.
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
    if pin::forbids(constraints, side, worker.rank) {
        return Some(Exclusion::NotPinned);
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
