//! What every request must be told, known without any scheduler.
//!
//! A token's tag is the chain hash of the tokens up to it, under the cache root; the next token is a
//! function of the last tag, the choice and the position.

use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::request::{CacheRoot, FinishReason, ResumedChoice, StopRule};
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::SchedulerConfig;

/// Ends a choice, one token in this many.
pub(super) const STOP_TOKEN: u32 = 0;
const VOCAB: u64 = 29;

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn root_tag(root: &CacheRoot) -> u64 {
    root.tenant.bytes().fold(7, |tag, byte| mix(tag, u64::from(byte)))
}

/// Tag of each position of `tokens`.
pub(super) fn chain(root: &CacheRoot, tokens: &[u32]) -> Vec<u64> {
    let mut tag = root_tag(root);
    tokens
        .iter()
        .map(|token| {
            tag = mix(tag, u64::from(*token));
            tag
        })
        .collect()
}

pub(super) fn next_token(last_tag: u64, choice: u32, position: usize) -> u32 {
    (mix(mix(last_tag, u64::from(choice)), position as u64) % VOCAB) as u32
}

pub(super) fn sampled(token: u32) -> Sampled {
    Sampled { token, logprob: -1.0, top: Vec::new() }
}

/// Tokens that a choice must generate after `generated`, and why it ends.
pub(super) fn oracle(
    root: &CacheRoot,
    prompt: &[u32],
    choice: &ResumedChoice,
    stop: &StopRule,
    context: usize,
) -> (Vec<u32>, FinishReason) {
    let mut tokens = prompt.to_vec();
    tokens.extend(&choice.generated);
    let mut generated = choice.generated.clone();
    loop {
        if let Some(last) = generated.last().copied() {
            if generated.len() >= stop.min_tokens as usize && stop.stop_token_ids.contains(&last) {
                return (generated, FinishReason::Stop(last));
            }
            if generated.len() >= stop.max_tokens as usize || tokens.len() >= context {
                return (generated, FinishReason::Length);
            }
        }
        let tag = *chain(root, &tokens).last().unwrap();
        let token = next_token(tag, choice.index, generated.len());
        tokens.push(token);
        generated.push(token);
    }
}

pub(super) fn config(blocks: usize, block_size: usize) -> SchedulerConfig {
    let mut config = SchedulerConfig::new(blocks, block_size, 4096);
    config.min_window_tokens = 2 * block_size;
    config.step.max_step = Duration::from_secs(5);
    config
}

pub(super) fn root(tenant: &str) -> Arc<CacheRoot> {
    Arc::new(CacheRoot {
        model_digest: vec![1; 32],
        adapter_digest: Vec::new(),
        tenant: tenant.to_owned(),
        cache_salt: String::new(),
    })
}

/// A prompt of `len` tokens that shares any shorter prefix with others of its family.
pub(super) fn prompt(family: u32, len: usize) -> Arc<[u32]> {
    (0..len).map(|i| 100 + (mix(u64::from(family), i as u64) % 1000) as u32).collect()
}
