//! A cost as a sum of named terms.

/// A part of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Waiting for what the worker has been given.
    Queue,
    /// What a worker may hide whose report is overdue.
    Staleness,
    /// Computing the uncached prompt.
    Prefill,
    /// Blocks stored twice in the fleet.
    Duplication,
    /// Moving KV to the decode worker.
    Transfer,
    /// Moving KV further than next door, or over a connection that is not yet open.
    Distance,
    /// The request's own decode steps.
    Decode,
    /// Slower decode steps of others.
    Interference,
    /// Evicting what was used lately.
    Eviction,
    /// Place in the turn order; not a time.
    Turn,
    /// Requests in hand; not a time.
    Requests,
    /// Place in a session's order of workers; not a time.
    Place,
    /// More requests than its share; not a time.
    Overload,
    /// A draw, where the choice is softened.
    Chance,
}

impl Term {
    /// Name in explanations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Staleness => "staleness",
            Self::Prefill => "prefill",
            Self::Duplication => "duplication",
            Self::Transfer => "transfer",
            Self::Distance => "distance",
            Self::Decode => "decode",
            Self::Interference => "interference",
            Self::Eviction => "eviction",
            Self::Turn => "turn",
            Self::Requests => "requests",
            Self::Place => "place",
            Self::Overload => "overload",
            Self::Chance => "chance",
        }
    }
}

/// Most terms that a cost has.
const MAX: usize = 8;

/// Terms in the order they were added; their sum in that order is the cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms([Option<(Term, f64)>; MAX]);

impl Terms {
    /// Of these, at most eight.
    pub fn of<const N: usize>(terms: [(Term, f64); N]) -> Self {
        const { assert!(N <= MAX) };
        let mut all = Self::default();
        for (slot, term) in all.0.iter_mut().zip(terms) {
            *slot = Some(term);
        }
        all
    }

    /// One more; beyond eight it is left out.
    pub fn add(&mut self, term: Term, value: f64) {
        if let Some(slot) = self.0.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some((term, value));
        }
    }

    /// The terms.
    pub fn iter(&self) -> impl Iterator<Item = (Term, f64)> + '_ {
        self.0.iter().flatten().copied()
    }

    /// The cost.
    pub fn sum(&self) -> f64 {
        self.iter().map(|(_, value)| value).sum()
    }
}
