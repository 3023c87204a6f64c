//! Adapters to engines of somebody else, before engines that do what a script says.

mod cancel;
mod discovery;
mod generate;
mod health;
mod misbehaviour;
mod scripted_engine;

use armature_worker::config::EngineKind;
use armature_worker::domain::openai::dialect::Dialect;
use armature_worker::identity::Role;

use crate::harness::{Fleet, Node, prompt, request};
use armature_contracts::worker::v1 as wire;
use scripted_engine::ScriptedEngine;

/// A worker before `engine`.
async fn before(fleet: &mut Fleet, engine: &ScriptedEngine) -> Node {
    let url = engine.url();
    fleet.start(Role::Aggregated, |config| config.openai.url = url).await
}

/// A worker before an engine of this kind that takes and tells ids, or neither.
async fn pair(dialect: Dialect, ids: bool) -> (Fleet, ScriptedEngine, Node) {
    let engine = ScriptedEngine::start(dialect, ids).await;
    let mut fleet = Fleet::external(EngineKind::OpenAi);
    let node = before(&mut fleet, &engine).await;
    (fleet, engine, node)
}

/// A greedy request for `tokens` tokens after a prompt of 20, without log-probabilities.
fn ask(node: &Node, tokens: u32) -> wire::GenerateRequest {
    let mut asked = request(node, &prompt(20, 1), tokens, 1);
    asked.sampling.as_mut().unwrap().logprobs = None;
    asked.stop.as_mut().unwrap().ignore_eos = false;
    asked
}

/// The tokens that the double generates.
fn tokens(count: usize) -> Vec<u32> {
    (0..count).map(scripted_engine::token).collect()
}
