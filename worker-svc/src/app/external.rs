//! A worker that stands before an engine of somebody else.

use std::sync::Arc;

use armature_svc_kit::config::ConfigError;
use armature_svc_kit::discovery_client::ModelCardBytes;
use prometheus_client::registry::Registry;
use prost::Message as _;

use super::{Base, Engine, StartError};
use crate::adapters::openai::{EngineClient, EngineMetrics, Found, OpenAiEngine, discover};
use crate::card;
use crate::config::External;
use crate::domain::openai::table::Limits;
use crate::identity::Identity;
use crate::ports::{KvGeometry, ModelSpec};

/// Finds the engine and what it serves; waits for one that is starting.
pub(super) async fn engine(
    base: &Base<'_>,
    external: &External,
    registry: &mut Registry,
) -> Result<Engine, StartError> {
    let config = &base.validated.config;
    let client = EngineClient::new(external.url.clone(), config.openai.api_key.clone())
        .map_err(|error| ConfigError::invalid("openai.url", error.to_string()))?;
    let found = discover(&client, &external.settings).await?;
    tracing::info!(
        url = %client.url(), model = found.model, kind = %found.abilities.dialect, context = found.context_length,
        abilities = ?found.abilities.capabilities(), "found an engine"
    );
    let identity = Identity::new(spec(&found, config.block_size, base.first.0));
    let of_engine = found.kv_tokens.map(|tokens| tokens as usize / config.block_size);
    let blocks = of_engine.filter(|blocks| *blocks > 0).unwrap_or(config.kv_blocks);
    let card = card::external(config, &identity, &found, blocks);
    let card = ModelCardBytes {
        card: card.encode_to_vec().into(),
        artifacts: vec![found.tokenizer.clone().into(), found.template.clone().into()],
    };
    let limits = Limits {
        max_running: found.slots.unwrap_or(config.scheduler.max_running),
        max_waiting: config.scheduler.max_waiting,
        context: found.context_length,
        block_size: config.block_size,
        blocks,
    };
    let engine = OpenAiEngine::new(client, found, limits, EngineMetrics::new(registry), base.first);
    let publishing = base.publishing(&engine, &identity, registry)?;
    Ok(Engine {
        identity,
        backend: Arc::clone(&engine) as _,
        own: None,
        card,
        kv_address: None,
        publishing,
        external: Some((engine, external.watch)),
        thread: None,
    })
}

/// The model as far as it is known. Engines that call it alike and cut text alike serve the same; that two of them compute the same bits is
/// never believed, not even of one that was started anew.
fn spec(found: &Found, block_size: usize, first: u64) -> ModelSpec {
    let mut digest = blake3::Hasher::new();
    for part in [b"external model", found.served_name.as_bytes(), &found.tokenizer] {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    ModelSpec {
        model_digest: *digest.finalize().as_bytes(),
        name: found.served_name.clone(),
        vocab_size: found.vocab_size,
        context_length: found.context_length,
        kv: KvGeometry { layers: 0, kv_heads: 0, head_dim: 0, block_size },
        rope: String::new(),
        kernel: format!("external {first:016x}"),
        eos_token_ids: found.eos.clone(),
        bos_token_id: found.bos,
    }
}
