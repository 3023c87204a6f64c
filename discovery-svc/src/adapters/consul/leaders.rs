//! Leadership as a lock of Consul: the key of a name is held by the session of its leader, and its value says who that is and in which term.
//!
//! The key outlives the session with its term, so that the next term is greater. Where keys were lost, the wall clock in milliseconds makes it
//! so: a name changes its leader less often. A
//! session has a TTL of at least 10 s and is ended by Consul between one and two TTLs after its last renewal: a leader that is gone may be
//! followed later than it asked for, never earlier.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::client::{Ask, CallError, Client};
use super::fences::unix_ms;
use super::kv::{self, Pair};
use super::names::Names;
use crate::domain::leaders::{Leadership, Term, TooManyNames};

/// Consul's own bound.
const SHORTEST: Duration = Duration::from_secs(10);
/// How often a race for a lock is run again before somebody else may answer.
const ATTEMPTS: usize = 4;

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Value {
    leader: u64,
    term: u64,
}

/// Why nobody leads.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// No room for another name.
    #[error(transparent)]
    TooManyNames(#[from] TooManyNames),
    /// Consul.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The locks of all names.
#[derive(Debug)]
pub struct Leaders {
    limit: usize,
    held: AtomicUsize,
}

impl Leaders {
    /// At most `limit` names.
    pub fn new(limit: usize) -> Self {
        Self { limit, held: AtomicUsize::new(0) }
    }

    /// Names with a leader when they were counted last.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Asks for or renews leadership; answers who leads.
    pub async fn campaign(
        &self,
        client: &Client,
        names: &Names,
        (name, candidate, ttl): (&str, InstanceId, Duration),
    ) -> Result<Leadership, ElectionError> {
        let key = names.leader(name);
        for _ in 0..ATTEMPTS {
            let pair = kv::get(client, &key).await?;
            let last = pair.as_ref().and_then(value).map_or(0, |value| value.term);
            if let Some((leadership, session)) = pair.as_ref().and_then(held) {
                if leadership.leader != candidate || renew(client, &session).await? {
                    return Ok(leadership);
                }
                // It ended between the two calls.
                continue;
            }
            self.make_room(client, names, &key, pair.is_some()).await?;
            let term = Term(last.saturating_add(1).max(unix_ms()));
            if acquire(client, &key, Leadership { leader: candidate, term }, ttl).await? {
                self.held.fetch_add(1, Ordering::Relaxed);
                return Ok(Leadership { leader: candidate, term });
            }
        }
        let operation = "lock";
        Err(CallError::Refused {
            operation,
            status: 409,
            why: "the lock changes hands all the time".to_owned(),
        }
        .into())
    }

    /// Gives leadership up, if it is the candidate's in this term.
    pub async fn resign(
        &self,
        client: &Client,
        names: &Names,
        (name, leadership): (&str, Leadership),
    ) -> Result<(), CallError> {
        let pair = kv::get(client, &names.leader(name)).await?;
        match pair.as_ref().and_then(held) {
            Some((held, session)) if held == leadership => {
                let destroy = Ask::put("session_destroy", format!("/v1/session/destroy/{session}"), "");
                client.ask(destroy).await.map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Refuses another name beyond the limit; keys of names without a leader make room.
    async fn make_room(
        &self,
        client: &Client,
        names: &Names,
        key: &str,
        known: bool,
    ) -> Result<(), ElectionError> {
        let pairs = kv::list(client, &names.leaders()).await?;
        let count = pairs.iter().filter(|pair| pair.key != key && pair.session.is_some()).count();
        self.held.store(count, Ordering::Relaxed);
        if count >= self.limit {
            return Err(TooManyNames { limit: self.limit }.into());
        }
        let idle = pairs.iter().filter(|pair| pair.key != key && pair.session.is_none());
        let mut excess = (pairs.len() + usize::from(!known)).saturating_sub(self.limit);
        for pair in idle {
            if excess == 0 {
                break;
            }
            kv::delete(client, &pair.key, pair.index).await?;
            excess -= 1;
        }
        Ok(())
    }
}

fn value(pair: &Pair) -> Option<Value> {
    serde_json::from_slice(&pair.value).ok()
}

fn held(pair: &Pair) -> Option<(Leadership, String)> {
    let (session, value) = (pair.session.clone()?, value(pair)?);
    Some((Leadership { leader: InstanceId(value.leader), term: Term(value.term) }, session))
}

/// Whether the session was still there.
async fn renew(client: &Client, session: &str) -> Result<bool, CallError> {
    let renew = Ask::put("session_renew", format!("/v1/session/renew/{session}"), "");
    Ok(client.ask(renew).await?.found)
}

/// Whether the lock is the leader's now. Without a check of a machine: the life of an agent says nothing about the leader's.
async fn acquire(
    client: &Client,
    key: &str,
    leadership: Leadership,
    ttl: Duration,
) -> Result<bool, CallError> {
    #[derive(Deserialize)]
    struct Created {
        #[serde(rename = "ID")]
        id: String,
    }
    let ttl = ttl.max(SHORTEST);
    let session = json!({
        "Name": key,
        "TTL": format!("{}s", ttl.as_secs_f64().ceil()),
        "Behavior": "release",
        "LockDelay": "0s",
        "Checks": [],
    });
    let created = client.ask(Ask::put("session_create", "/v1/session/create", session.to_string())).await?;
    let Ok(Created { id }) = serde_json::from_slice(&created.body) else { return Ok(false) };
    let value = serde_json::to_vec(&Value { leader: leadership.leader.0, term: leadership.term.0 });
    let lock = Ask::put("lock", kv::path(key), value.unwrap_or_default()).with("acquire", &id);
    let acquired = client.ask(lock).await.map(|answer| answer.body.trim_ascii() == b"true");
    if !matches!(acquired, Ok(true)) {
        client.ask(Ask::put("session_destroy", format!("/v1/session/destroy/{id}"), "")).await?;
    }
    acquired
}
