//! The decision: a pure function of its inputs.
//!
//! A [`Policy`] is one file: it may filter beyond what holds for every policy ([`eligibility`]), it scores the eligible workers of a task by costs
//! in named terms, and it may pick otherwise than by the least. Ranking, the choice between local and remote prefill and alternates are the same for all
//! ([`decide`]): workers in doubt come after those that are not, workers without a report after those with one, then the cost decides, and between
//! equal costs a draw by seed in proportion to the workers' weights. The seed is an input, so equal inputs give equal decisions.
//!
//! To add one: write its file, and name it in [`PolicyKind`].

pub mod decide;
pub mod direct;
pub mod eligibility;
pub mod kv;
pub mod least_loaded;
pub mod pin;
pub mod power_of_two;
#[cfg(test)]
pub(crate) mod properties;
mod question;
mod refusal;
pub mod round_robin;
pub mod session;
mod settings;
pub mod terms;
mod topology;

use std::sync::Arc;

use armature_contracts::ids::{InstanceId, WorkerRank};

pub use question::{Adapter, Constraints, PrefillChoice, Question, SessionKey};
pub use refusal::Refusal;
pub use settings::{Overrides, Settings};

use super::load::Load;
use super::units::{Blocks, Side, Tokens};
use super::worker::Worker;
use decide::{Scored, Weighing};
use eligibility::Exclusion;
use terms::Terms;

/// A way of choosing.
pub trait Policy: Sync {
    /// Name in configuration, metrics and answers.
    fn name(&self) -> &'static str;

    /// Why `candidate` may not take `side` of the request, beyond what holds for every policy.
    fn filter(&self, _question: &Question, _side: Side, _candidate: &Candidate) -> Option<Exclusion> {
        None
    }

    /// The cost of every worker of the task's pool, in its order.
    fn score(&self, task: &Task<'_>) -> Vec<Terms>;

    /// Puts first who is to be taken of `best`: the workers nobody of the pool is more certain than, by rising cost.
    fn pick(&self, _task: &Task<'_>, _best: &mut [Scored]) {}

    /// Time to the first token with the prompt computed by `remote.1` for `remote.0`, and by `local`; none where costs are no times: remote
    /// prefill is taken whenever there is one then.
    fn weigh(
        &self,
        _inputs: &Inputs,
        _remote: (&Candidate, &Candidate),
        _local: &Candidate,
    ) -> Option<Weighing> {
        None
    }
}

/// What the workers of a pool are scored for.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// Everything that is known.
    pub inputs: &'a Inputs,
    /// What they would do.
    pub part: Part,
    /// Eligible workers, by index into the inputs' candidates, rising.
    pub pool: &'a [usize],
}

impl<'a> Task<'a> {
    /// The workers of the pool.
    pub fn candidates(self) -> impl ExactSizeIterator<Item = &'a Candidate> {
        self.pool.iter().map(move |at| &self.inputs.candidates[*at])
    }
}

/// A worker's part in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Leads it and computes the prompt.
    Local,
    /// Leads it and is given the prompt's KV.
    Remote,
    /// Computes the prompt for this decode worker, by index into the inputs' candidates.
    Prefill {
        /// Who leads.
        decode: usize,
    },
}

macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident => $policy:expr,)*) => {
        /// The policies there are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum PolicyKind {
            $($(#[$doc])* $kind,)*
        }

        impl PolicyKind {
            /// Every policy.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// How it chooses.
            pub fn policy(self) -> &'static dyn Policy {
                match self {
                    $(Self::$kind => &$policy,)*
                }
            }
        }
    };
}

policies! {
    /// By KV locality and load, in milliseconds.
    Kv => kv::Kv,
    /// In turn.
    RoundRobin => round_robin::RoundRobin,
    /// By requests in hand.
    LeastLoaded => least_loaded::LeastLoaded,
    /// The worker that the client names.
    Direct => direct::Direct,
    /// The less loaded of two drawn ones.
    PowerOfTwo => power_of_two::PowerOfTwo,
    /// A conversation stays where it is.
    Session => session::Session,
}

impl PolicyKind {
    /// Name in configuration, metrics and answers.
    pub fn name(self) -> &'static str {
        self.policy().name()
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// One worker of the served set, as it was at the decision.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which.
    pub worker: Arc<Worker>,
    /// Its load.
    pub load: Load,
    /// Blocks of the prompt that it is believed to have.
    pub matched: Blocks,
    /// Instances to which it has warm transfer connections; empty when it does not say.
    pub warm_peers: Arc<[InstanceId]>,
}

impl Candidate {
    /// u: prompt tokens that it must compute; at least one, for the last token is always computed.
    pub fn uncached(&self, prompt: Tokens) -> Tokens {
        let matched = self.worker.block_size.tokens(self.matched);
        Tokens(prompt.0.saturating_sub(matched.0).max(1))
    }
}

/// Everything that a decision depends on.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// What is to be decided.
    pub question: Arc<Question>,
    /// Workers of the set, by rank.
    pub candidates: Vec<Candidate>,
    /// Labels that say where a worker is, from coarse to fine.
    pub topology: Arc<[String]>,
    /// Weights, the request's overrides taken in.
    pub settings: Settings,
    /// Breaks ties.
    pub seed: u64,
    /// How many decisions came before.
    pub turn: u64,
}

impl Inputs {
    /// Bytes they hold, roughly: what bounds the decisions that are kept.
    pub fn bytes(&self) -> usize {
        let constraints = &self.question.constraints;
        let labels: usize =
            constraints.labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        let named = constraints.exclude.len() + constraints.allow.len();
        let peers: usize = self.candidates.iter().map(|candidate| candidate.warm_peers.len()).sum();
        size_of::<Self>()
            + size_of::<Question>()
            + peers * size_of::<InstanceId>()
            + labels
            + named * size_of::<WorkerRank>()
            + self.candidates.len() * size_of::<Candidate>()
    }
}
