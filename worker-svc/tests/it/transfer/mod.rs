//! The KV data plane: one contract suite for both transports, and what is particular to each.

mod abort;
mod contract;
mod hostile;
mod rig;
mod shm;
