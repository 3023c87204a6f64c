//! What tests with containers need: a fleet by `compose.yaml` as it is, faults in its containers, a load that notices every one of them, and
//! the routers' views afterwards.
//!
//! Compiled with the feature `engine` only (`ci/containers.sh`), for everything else does without an engine. The images are those of
//! `ci/images.sh`.

#![cfg(feature = "engine")]

pub mod container;
pub mod docker;
pub mod fleet;
pub mod load;
pub mod views;
