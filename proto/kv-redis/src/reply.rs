//! Commands as the library's, and its values as answers.

use bytes::Bytes;
use redis::{Cmd, RedisError, ServerErrorKind, Value, cmd};

use crate::command::{Command, Entry, Lost, Refusal, Reply};

/// Field of an entry that holds its content.
const PAYLOAD: &str = "b";
/// Field of an entry that holds the writer's clock.
const AT: &str = "t";

/// The command as Redis takes it.
pub(crate) fn command(command: &Command) -> Cmd {
    let mut it;
    match command {
        Command::Append { key, id, payload, at_ms, keep } => {
            it = cmd("XADD");
            it.arg(key);
            if let Some(keep) = keep {
                it.arg("MAXLEN").arg("=").arg(*keep);
            }
            it.arg(format!("{id}-0")).arg(PAYLOAD).arg(&payload[..]).arg(AT).arg(*at_ms);
        }
        Command::Read { key, from, count } => {
            it = cmd("XRANGE");
            it.arg(key).arg(format!("{from}-0")).arg("+").arg("COUNT").arg(*count);
        }
        Command::Newest { key, count } => {
            it = cmd("XREVRANGE");
            it.arg(key).arg("+").arg("-").arg("COUNT").arg(*count);
        }
        Command::Trim { key, below } => {
            it = cmd("XTRIM");
            it.arg(key).arg("MINID").arg("=").arg(format!("{below}-0"));
        }
        Command::PutChunk { key, chunk, payload } => {
            it = cmd("HSET");
            it.arg(key).arg(*chunk).arg(&payload[..]);
        }
        Command::Chunk { key, chunk } => {
            it = cmd("HGET");
            it.arg(key).arg(*chunk);
        }
        Command::Expire { key, after } => {
            it = cmd("PEXPIRE");
            it.arg(key).arg(after.as_millis() as u64);
        }
        Command::Drop { key } => {
            it = cmd("UNLINK");
            it.arg(key);
        }
        Command::Notify { channel, notice } => {
            it = cmd("PUBLISH");
            it.arg(channel).arg(notice);
        }
    }
    it
}

/// The answer to `command`.
///
/// # Errors
/// [`Lost`] for a value that does not fit: the connection cannot be trusted any more.
pub(crate) fn reply(command: &Command, value: Value) -> Result<Reply, Lost> {
    let unexpected = || Lost("an answer of another form than the command has".into());
    if let Value::ServerError(error) = value {
        return Ok(Reply::Refused(refusal(&RedisError::from(error))));
    }
    Ok(match command {
        Command::Read { .. } | Command::Newest { .. } => {
            let entries = value.into_sequence().map_err(|_| unexpected())?;
            Reply::Entries(
                entries
                    .into_iter()
                    .map(|value| entry(value).ok_or_else(unexpected))
                    .collect::<Result<_, _>>()?,
            )
        }
        Command::Chunk { .. } => match value {
            Value::Nil => Reply::Chunk(None),
            Value::BulkString(bytes) => Reply::Chunk(Some(bytes.into())),
            _ => return Err(unexpected()),
        },
        Command::Expire { .. } => match value {
            Value::Int(there) => Reply::Present(there == 1),
            _ => return Err(unexpected()),
        },
        _ => Reply::Done,
    })
}

/// Why the server refuses; for errors that are the server's.
pub(crate) fn refusal(error: &RedisError) -> Refusal {
    let detail = error.detail().unwrap_or_default();
    let text = format!("{} {detail}", error.code().unwrap_or_default()).trim().to_owned();
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => Refusal::Forbidden(text),
        redis::ErrorKind::Server(ServerErrorKind::ReadOnly) => Refusal::ReplicaOnly,
        // XADD with an id that is not the greatest.
        _ if detail.contains("equal or smaller") => Refusal::NotGreater,
        _ => match error.code() {
            Some("OOM") => Refusal::Full,
            Some("NOAUTH" | "NOPERM") => Refusal::Forbidden(text),
            _ => Refusal::Other(text),
        },
    }
}

fn entry(value: Value) -> Option<Entry> {
    let [id, fields] = <[Value; 2]>::try_from(value.into_sequence().ok()?).ok()?;
    let id = text(id)?.split_once('-')?.0.parse().ok()?;
    let mut fields = fields.into_sequence().ok()?.into_iter();
    let (mut payload, mut at_ms) = (None, 0);
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match text(name)?.as_str() {
            PAYLOAD => payload = Some(bytes(value)?),
            AT => at_ms = text(value)?.parse().ok()?,
            _ => {}
        }
    }
    Some(Entry { id, payload: payload?, at_ms })
}

fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
