//! Puts cards and artifacts that instances show back into a Consul that has lost them.

use std::time::Duration;

use tokio::time::sleep;

use super::agent::Agent;
use super::blobs::{self, BlobError, Kind};
use super::link::Link;
use crate::adapters::memory::Memory;
use crate::domain::store::Limits;

/// Pause after one could not be put back.
const PAUSE: Duration = Duration::from_secs(1);

/// Compares whenever Consul comes into sight or is in doubt, for ever.
pub(super) async fn run(agent: &Agent, memory: &Memory, link: &Link, limits: Limits) {
    let mut changes = link.subscribe();
    let mut last = None;
    loop {
        let occasion = link.in_sight();
        if occasion.is_none() || occasion == last {
            changes.changed().await;
            continue;
        }
        match restore(agent, memory, limits).await {
            Ok(()) => last = occasion,
            Err(error) => {
                tracing::warn!(%error, "cards and artifacts not put back, trying again");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn restore(agent: &Agent, memory: &Memory, limits: Limits) -> Result<(), BlobError> {
    for kind in [Kind::Card, Kind::Artifact] {
        let present = blobs::present(&agent.client, &agent.names, kind).await?;
        let (limit, shown) = memory.with(|store, _| match kind {
            Kind::Card => (limits.card_bytes, store.shown_cards()),
            Kind::Artifact => (limits.artifact_bytes, store.shown_artifacts()),
        });
        for digest in shown.difference(&present) {
            let content = memory.with(|store, _| match kind {
                Kind::Card => store.card(digest),
                Kind::Artifact => store.artifact(digest),
            });
            let Some(content) = content else { continue };
            blobs::put(&agent.client, &agent.names, (kind, *digest, content), limit, &shown).await?;
            tracing::info!(kind = kind.as_str(), %digest, "put back into Consul");
        }
    }
    Ok(())
}
