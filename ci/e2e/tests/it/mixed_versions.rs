//! Services among peers of another version: every message between any two of them is what a peer of that version would have sent, and they
//! hear what it would have understood.

use std::time::Duration;

use armature_contracts::inference::v1 as inference;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use armature_e2e::between::Between;
use armature_e2e::cluster::Cluster;
use armature_e2e::eras::Contracts;
use armature_e2e::wait_until;
use inference::generate_response::Event;
use inference::inference_service_client::InferenceServiceClient;

/// What a chat says, in tokens and text, through `doors` if there are any. It was prefilled on one worker and decoded on another.
async fn chat(model: &std::path::Path, doors: Option<&Between>) -> (String, u32) {
    let mut cluster = match doors {
        Some(doors) => Cluster::start_between(Some(model), doors),
        None => Cluster::start(Some(model)),
    };
    for (name, role) in [("worker-p", "prefill"), ("worker-d", "decode")] {
        cluster.worker(name, role, &[("served_name", "tiny")]);
    }
    cluster.serving("tiny", 1, 1).await;

    let frontend = doors.map_or_else(|| cluster.grpc.clone(), |doors| doors.door(&cluster.grpc));
    let mut client = InferenceServiceClient::connect(format!("http://{frontend}")).await.unwrap();
    let content = "a story that is long enough for some blocks, ".repeat(8);
    let message = inference::ChatMessage { role: "user".into(), content, name: String::new() };
    let request = inference::GenerateRequest {
        model: "tiny".into(),
        input: Some(inference::generate_request::Input::Messages(inference::ChatMessages {
            messages: vec![message],
        })),
        sampling: Some(inference::SamplingParams { seed: Some(3), ..Default::default() }),
        stop: Some(inference::StopConditions {
            max_tokens: Some(40),
            ignore_eos: true,
            ..Default::default()
        }),
        n: Some(2),
        ..Default::default()
    };
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let (mut text, mut prefilled_elsewhere, mut tokens) = ([String::new(), String::new()], false, 0);
    while let Some(response) = stream.message().await.unwrap() {
        match response.event {
            Some(Event::Started(started)) => prefilled_elsewhere = !started.prefill_worker.is_empty(),
            Some(Event::Delta(delta)) => text[delta.choice as usize] += &delta.text,
            Some(Event::Finished(finished)) => tokens = finished.usage.unwrap().completion_tokens,
            None => panic!("an event of nobody's"),
        }
    }
    assert!(prefilled_elsewhere, "the KV was handed over");

    // What the workers cache is known to the router, block by block.
    let router = format!("http://{}", cluster.address("router-1"));
    let mut router = RouterServiceClient::connect(router).await.unwrap();
    wait_until("the router knows every block", async || {
        let asked = ListWorkersRequest { namespace: "default".into() };
        let workers = router.list_workers(asked).await.unwrap().into_inner().workers;
        let known = |it: &WorkerView| {
            it.index_known && it.indexed_blocks == it.reported_blocks && it.reported_blocks > 0
        };
        workers.len() == 2 && workers.iter().all(known)
    })
    .await;

    for name in ["frontend", "worker-d", "worker-p", "router-1", "discovery"] {
        cluster.get(name).signal("TERM");
        let ended = tokio::time::timeout(Duration::from_secs(60), cluster.get(name).ended()).await;
        assert!(ended.unwrap().success(), "{name} ends well");
    }
    (text.concat(), tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_baseline_and_of_the_future_say_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny.gguf");
    armature_tiny_gguf::write(&model, &armature_tiny_gguf::Spec::default()).unwrap();

    let among_equals = chat(&model, None).await;
    assert_eq!(among_equals.1, 80);
    for contracts in [Contracts::baseline(), Contracts::future()] {
        assert_eq!(chat(&model, Some(&Between::new(contracts))).await, among_equals);
    }
}
