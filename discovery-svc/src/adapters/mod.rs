//! Implementations of the ports, one file each.

pub mod card;
pub mod file;
pub mod listing;
pub mod memory;
