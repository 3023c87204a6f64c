//! Transport `shm`: D proves the secret at P's Unix socket, is given P's sealed memory file, maps it
//! read-only and copies what P announces into its own blocks. Nobody but P can ever write P's pool.
//!
//! ```text
//! D -> P  connects to <directory>/<incarnation>.sock; proof (see `proof.rs`)
//! P -> D  pool(24) with the descriptor: layers(4) kv heads(4) head dim(4) block size(4) blocks(8), LE
//! ```

pub(crate) mod exporter;
pub(crate) mod importer;
pub(crate) mod pool;
pub(crate) mod puller;
