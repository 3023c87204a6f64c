//! KV events from Redis: [`directory`] knows whose, [`notified`] collects what has changed, [`reader`] reads it, [`load`] takes snapshots.

pub mod directory;
mod load;
mod notified;
pub mod reader;

pub use directory::Directory;
pub use reader::RedisReader;
