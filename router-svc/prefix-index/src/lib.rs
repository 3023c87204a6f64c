//! Which workers have which prefix.
//!
//! An [`Index`] maps chained sequence hashes of KV blocks to sets of workers and tiers. Reads take no lock and never retry; writers of
//! different shards run beside each other; memory stays within a byte budget at every instant, and comes back when blocks go.
//!
//! - 2^4 to 2^14 segments by the upper bits of a keyed mix of the hash ([`mix`](self)), each one table of cache-line buckets with six blocks.
//!   A block is one word: 42 more bits of the mix, and who has it.
//! - Who has it is one worker by itself, or an interned set. A chain's blocks share their set.
//! - A table that is too full or too empty is built anew and replaced by one store; readers count themselves in and out, and the old one is
//!   freed when those who may see it have left.
//! - [`Index::find`] looks at few depths of a prompt: where two depths have equal holders, so has everything between them. A block that is
//!   missing in between (a hole) may be passed over, so a match may be too long and is never too short; [`Index::depth`] looks at every
//!   block, and is for the worker that was chosen.
//! - When memory runs out the least valuable blocks are forgotten, chains from their tails, those that [`Index::hit`] has seen lately last.
//! - A worker is dropped at once; its blocks are swept out later, and only then its number is used again.
//!
//! It does not know what a block's tokens are, who is alive, or what a match is worth. Equal hashes are not equal tokens: an answer may choose
//! a worker, and nothing else.

mod bucket;
mod budget;
mod epochs;
mod find;
mod holders;
mod index;
mod mix;
mod options;
mod published;
mod sets;
mod shard;
mod size;
mod sync;
mod upkeep;
mod value;
mod workers;
mod write;

pub use find::Search;
pub use holders::MAX_WORKERS;
pub use index::{Index, Totals};
pub use options::{Options, TooSmall};
pub use shard::Held;
pub use workers::Worker;
pub use write::{Parent, TIERS};
