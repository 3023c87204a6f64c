//! Newtypes of the worker's own ids. They never leave the process.

/// A KV block of the pool: an index from 0 to the pool's block count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The index as a `usize`, for addressing the pool's memory.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request inside this worker, unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence of tokens being computed: a choice of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// One reservation of a router at this worker: 128 random bits drawn by the frontend, and the
/// attempt. The pair is the key everywhere; a second submission of the same pair is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationKey {
    /// The reservation's random bits.
    pub id: u128,
    /// Raised by every new routing decision of the request.
    pub attempt: u32,
}

/// A window of a landing transfer: counts from 0 within its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowIndex(pub u32);

/// A step of the scheduler: counts from 1 for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u64);
