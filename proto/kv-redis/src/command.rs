//! The commands that publishers and readers use, and no others: what a store has to be able to do, what an ACL has to allow, and what a model
//! of Redis in a test has to have.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::fitness::Unfit;

/// One command on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `XADD key [MAXLEN = keep] <id>-0 b payload t at_ms`: refused with [`Refusal::NotGreater`] when the stream has had this id or a later one.
    Append {
        /// Stream.
        key: String,
        /// Of the entry.
        id: u64,
        /// Its content.
        payload: Bytes,
        /// Wall clock of the writer, in milliseconds since 1970.
        at_ms: u64,
        /// Entries that remain, the newest; all when none.
        keep: Option<u32>,
    },
    /// `XRANGE key <from>-0 + COUNT count`.
    Read {
        /// Stream.
        key: String,
        /// First id wanted.
        from: u64,
        /// Most entries.
        count: usize,
    },
    /// `XREVRANGE key + - COUNT count`: the newest first.
    Newest {
        /// Stream.
        key: String,
        /// Most entries.
        count: usize,
    },
    /// `XTRIM key MINID = <below>-0`: drops entries with a smaller id.
    Trim {
        /// Stream.
        key: String,
        /// Smallest id that remains.
        below: u64,
    },
    /// `HSET key chunk payload`.
    PutChunk {
        /// Hash.
        key: String,
        /// Field.
        chunk: u32,
        /// Content.
        payload: Bytes,
    },
    /// `HGET key chunk`.
    Chunk {
        /// Hash.
        key: String,
        /// Field.
        chunk: u32,
    },
    /// `PEXPIRE key after`. Answers whether the key is there.
    Expire {
        /// Any key.
        key: String,
        /// Time to live.
        after: Duration,
    },
    /// `UNLINK key`.
    Drop {
        /// Any key.
        key: String,
    },
    /// `PUBLISH channel notice`.
    Notify {
        /// Channel.
        channel: String,
        /// Text.
        notice: String,
    },
}

/// An entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number before the dash.
    pub id: u64,
    /// Its content.
    pub payload: Bytes,
    /// Wall clock of the writer, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// To [`Command::Expire`]: whether the key is there.
    Present(bool),
    /// To [`Command::Read`] and [`Command::Newest`].
    Entries(Vec<Entry>),
    /// To [`Command::Chunk`]; none when there is no such field.
    Chunk(Option<Bytes>),
    /// The server refuses; the command has had no effect.
    Refused(Refusal),
}

/// Why the server refuses a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The stream has had this id or a later one.
    #[error("the stream has this entry or a later one")]
    NotGreater,
    /// Its memory is full.
    #[error(
        "Redis is full: raise its maxmemory, or give it less to keep (blocks of the workers, other users)"
    )]
    Full,
    /// The user may not do this.
    #[error("Redis forbids it: {0}; give the user the rules that docs/operations.md lists")]
    Forbidden(String),
    /// It is a replica.
    #[error("Redis is a replica and takes no writes: name the primary in kv_events.redis.url")]
    ReplicaOnly,
    /// Anything else: loading, a cluster without a quorum, a key of another type.
    #[error("Redis refuses: {0}")]
    Other(String),
}

impl Refusal {
    /// A short name, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotGreater => "not_greater",
            Self::Full => "full",
            Self::Forbidden(_) => "forbidden",
            Self::ReplicaOnly => "replica",
            Self::Other(_) => "other",
        }
    }
}

/// The connection is gone, or no answer came in time: the commands may have been done, may be done later, or never.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no answer from Redis: {0}")]
pub struct Lost(pub String);

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing answers, or not in time.
    #[error("cannot reach Redis: {0}")]
    Unreachable(String),
    /// It refuses the user or the password.
    #[error("Redis refuses the login: {0}; check kv_events.redis.username and kv_events.redis.password")]
    Login(String),
    /// One side does not trust the other.
    #[error("TLS with Redis fails: {0}; check kv_events.redis.ca_file, cert_file and key_file")]
    Tls(String),
    /// It cannot be used as it is set up.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl ConnectError {
    /// A short name, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Login(_) => "login",
            Self::Tls(_) => "tls",
            Self::Unfit(_) => "unfit",
        }
    }
}

/// Texts published on a channel, until the connection is gone.
pub type Notices = BoxStream<'static, Bytes>;

/// One connection. Commands of one call are pipelined: sent together, done in order per key, answered one by one.
pub trait Store: Send {
    /// Runs commands; as many answers as commands.
    ///
    /// # Errors
    /// [`Lost`]: nothing is known of any of them.
    fn run(&mut self, commands: Vec<Command>) -> impl Future<Output = Result<Vec<Reply>, Lost>> + Send;
}

/// Makes connections.
pub trait Connector: Send + Sync + 'static {
    /// What it makes.
    type Store: Store + 'static;

    /// A connection to a server that has been checked to be fit.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn connect(&self) -> impl Future<Output = Result<Self::Store, ConnectError>> + Send;

    /// Listens on a channel, on a connection of its own.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn listen(&self, channel: &str) -> impl Future<Output = Result<Notices, ConnectError>> + Send;
}
