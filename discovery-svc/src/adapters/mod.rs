//! Implementations of the ports, one file or folder each.

pub mod card;
pub mod consul;
pub mod file;
pub mod listing;
pub mod memory;
