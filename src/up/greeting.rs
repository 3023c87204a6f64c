//! What a user sees when everything is ready: where it is, and a line to paste.

use super::fleet::Fleet;
use crate::status;

/// Prints endpoints and first commands.
#[allow(clippy::print_stdout)]
pub(super) async fn print(fleet: &Fleet) {
    let (workers, policy) = fleet.workers().await;
    let model = workers.first().map(|worker| worker.served_name.clone()).unwrap_or_default();
    println!("{}", status::text(&workers, &policy));
    println!("OpenAI HTTP  http://{}/v1", fleet.http);
    println!("gRPC         {}  (armature.inference.v1.InferenceService)", fleet.grpc);
    println!("router       {}  (armature status)", fleet.router_address);
    if let Some(admin) = &fleet.admin {
        println!("admin        http://{admin}  (/livez /readyz /metrics)");
    }
    println!("\ntry:\n");
    println!(
        "curl http://{}/v1/chat/completions -H 'content-type: application/json' -d '{}'",
        fleet.http,
        serde_json::json!({
            "model": model,
            "messages": [{"role": "user", "content": "Tell me one fact about the sea."}],
            "max_tokens": 64,
            "temperature": 0,
        })
    );
    println!("\nor `make chat` in another terminal; Ctrl-C here drains and exits");
}
