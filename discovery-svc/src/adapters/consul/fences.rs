//! Fences of ids that are gone, as keys that every replica reads. Consul forgets no key by itself: replicas delete those whose time is up.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armature_contracts::ids::InstanceId;
use serde::{Deserialize, Serialize};

use super::client::{CallError, Client};
use super::kv::{self, Pair};
use super::names::Names;
use crate::domain::instance::LeaseEpoch;

/// Deleted at a time.
const SWEEP: usize = 256;

#[derive(Serialize, Deserialize)]
struct Value {
    epoch: u64,
    /// Of the wall clock: replicas share no other.
    until_unix_ms: u64,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The epoch that the id was gone at.
    pub epoch: LeaseEpoch,
    until_unix_ms: u64,
    /// 0 until it was read.
    index: u64,
}

/// Every fence by its id.
pub type Fences = BTreeMap<InstanceId, Fence>;

/// Reads a recursive answer; other keys are passed over.
pub fn read(body: &[u8]) -> Fences {
    let fence = |pair: Pair| {
        let id = pair.key.rsplit('/').next()?.parse().ok()?;
        let value: Value = serde_json::from_slice(&pair.value).ok()?;
        let Value { epoch, until_unix_ms } = value;
        Some((id, Fence { epoch: LeaseEpoch(epoch), until_unix_ms, index: pair.index }))
    };
    kv::pairs(body).into_iter().filter_map(fence).collect()
}

/// What Consul had when it was read last. Bounded by what Consul has, which replicas keep at `limit`.
#[derive(Debug)]
pub struct Known {
    limit: usize,
    fences: Mutex<Fences>,
}

impl Known {
    /// Nothing yet.
    pub fn new(limit: usize) -> Self {
        Self { limit, fences: Mutex::default() }
    }

    /// Takes in what was read; answers what is left of each, the newest `limit` of them.
    pub fn take(&self, fences: Fences) -> Vec<(InstanceId, LeaseEpoch, Duration)> {
        let now = unix_ms();
        let mut newest: Vec<_> =
            fences.iter().map(|(id, fence)| (fence.until_unix_ms, *id, fence.epoch)).collect();
        newest.sort_unstable();
        *self.lock() = fences;
        let left = |until: u64| Duration::from_millis(until.saturating_sub(now));
        newest.into_iter().rev().take(self.limit).map(|(until, id, epoch)| (id, epoch, left(until))).collect()
    }

    /// Whether Consul has a fence that says as much.
    pub fn covers(&self, id: InstanceId, epoch: LeaseEpoch) -> bool {
        self.lock().get(&id).is_some_and(|fence| fence.epoch >= epoch)
    }

    /// Writes a fence.
    pub async fn write(
        &self,
        client: &Client,
        names: &Names,
        id: InstanceId,
        (epoch, left): (LeaseEpoch, Duration),
    ) -> Result<(), CallError> {
        let index = self.lock().get(&id).map_or(0, |fence| fence.index);
        let until_unix_ms = unix_ms() + left.as_millis() as u64;
        let value = serde_json::to_vec(&Value { epoch: epoch.0, until_unix_ms }).unwrap_or_default();
        // Another replica that was quicker has fenced the same id; what differs, and the index, show at the next reading.
        kv::put(client, &names.fence(id), value.into(), index).await?;
        self.lock().insert(id, Fence { epoch, until_unix_ms, index: 0 });
        Ok(())
    }

    /// Deletes some of those whose time is up, and the oldest beyond the limit. Replicas that do the same at the same time do no harm.
    pub async fn sweep(&self, client: &Client, names: &Names) -> Result<(), CallError> {
        let now = unix_ms();
        let mut oldest: Vec<_> =
            self.lock().iter().map(|(id, it)| (it.until_unix_ms, *id, it.index)).collect();
        oldest.sort_unstable();
        let beyond = oldest.len().saturating_sub(self.limit);
        let over =
            oldest.into_iter().enumerate().filter(|(turn, (until, ..))| *turn < beyond || *until <= now);
        for (_, (_, id, index)) in over.take(SWEEP) {
            kv::delete(client, &names.fence(id), index).await?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Fences> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wall clock: replicas share no other.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
