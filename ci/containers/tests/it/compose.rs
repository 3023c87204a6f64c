//! `compose.yaml` as its users first meet it.

use armature_containers::docker::docker;
use armature_containers::fleet::Fleet;
use armature_contracts::inference::v1::generate_response::Event;
use armature_contracts::inference::v1::inference_service_client::InferenceServiceClient;
use armature_contracts::inference::v1::{GenerateRequest, StopConditions, generate_request};
use armature_e2e::wait_until;
use serde_json::json;

const MODEL: &str = "smollm2-135m-instruct";

#[tokio::test]
async fn a_chat_over_http_and_grpc_by_disaggregated_workers_and_a_clean_end() {
    let fleet = Fleet::start("llama", MODEL, &[]).await;
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "What is a river?"}],
        "max_tokens": 16, "temperature": 0});
    let mut answer = None;
    wait_until("a model is served", async || {
        let got = fleet.client.post("/v1/chat/completions", &chat).await;
        answer =
            got.ok().filter(|got| got.status == 200 && !got.header("x-armature-prefill-worker").is_empty());
        answer.is_some()
    })
    .await;
    let text = answer.unwrap().body["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(text.starts_with("A river is"), "{text}");

    let mut client = InferenceServiceClient::connect(format!("http://{}", fleet.grpc)).await.unwrap();
    let request = GenerateRequest {
        model: MODEL.into(),
        input: Some(generate_request::Input::Text("Once upon a time".into())),
        stop: Some(StopConditions { max_tokens: Some(8), ..Default::default() }),
        ..Default::default()
    };
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut said = String::new();
    while let Some(message) = stream.message().await.unwrap() {
        if let Some(Event::Delta(delta)) = message.event {
            said.push_str(&delta.text);
        }
    }
    assert!(!said.is_empty());

    // KV went from container to container through shared memory.
    let mut landed = 0;
    for worker in fleet.containers("worker-decode").await {
        let page = page(&worker.ip().await).await;
        assert!(page.contains("armature_worker_shm_fallbacks_total 0\n"), "{page}");
        landed += usize::from(page.contains("armature_worker_handoffs_total{end=\"Committed\"}"));
    }
    assert!(landed > 0, "no decode worker has taken a prompt over");

    for service in ["frontend", "worker-prefill", "worker-decode", "router", "discovery"] {
        for container in fleet.containers(service).await {
            container.stop().await;
            assert_eq!(
                container.exit_code().await,
                0,
                "{}: {}",
                container.name().await,
                container.logs().await
            );
        }
    }
}

/// The metrics of a worker.
async fn page(ip: &str) -> String {
    armature_e2e::client::Client::new(&format!("http://{ip}:7510")).get_text("/metrics").await
}

#[tokio::test]
async fn two_checkouts_run_side_by_side_and_more_workers_are_a_word() {
    let (one, other) = tokio::join!(Fleet::sim(), Fleet::sim());
    for fleet in [&one, &other] {
        let body = json!({"model": "sim", "prompt": "x", "max_tokens": 4});
        assert_eq!(fleet.client.post("/v1/completions", &body).await.unwrap().status, 200);
    }
    drop(other);
    one.compose(&["up", "-d", "--no-build", "--scale", "sim-decode=4"]).await;
    one.healthy().await;
    armature_containers::views::agree(&one, 6).await;
    let id = &one.only("frontend").await.id;
    let user = docker(&[
        "inspect",
        "--format",
        "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}",
        id,
    ])
    .await;
    assert_eq!(user, "65532:65532 true [ALL]");
}
