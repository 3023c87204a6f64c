//! The death of workers in the middle of streams.

use armature_contracts::error::{Fault, Reason};
use serde_json::{Value, json};

use crate::fake_worker::Script;
use crate::harness::{Harness, MODEL, Setup, says};

const TEXT: &str = "né 😀 ok";

fn ask(stream: bool, n: u32) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream, "n": n, "seed": 5,
        "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null }})
}

async fn workers(scripts: Vec<Script>) -> Harness {
    Harness::start(Setup { workers: scripts, ..Setup::default() }).await
}

#[tokio::test]
async fn a_death_at_any_token_is_not_seen_by_the_client() {
    for at in 0..=TEXT.len() {
        let dying = Script { dies_after: Some(at), ..says(TEXT) };
        let harness = workers(vec![dying, says(TEXT)]).await;
        let answer = harness.client().await.post("/v1/chat/completions", &ask(true, 1)).await;
        assert_eq!(answer.streamed(0), TEXT, "death after {at} tokens: {}", answer.text());
        let events = answer.events();
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], TEXT.len() + 1);

        let first = harness.workers[0].asked().remove(0);
        let second = harness.workers[1].asked().remove(0);
        assert_eq!(second.prompt_token_ids, first.prompt_token_ids);
        // What had arrived is sent along; a message in flight may have died with the connection.
        let generated = &second.choices[0].generated_token_ids;
        let text: Vec<u32> = TEXT.bytes().map(u32::from).collect();
        assert!(generated.len() <= at && text.starts_with(generated), "{generated:?} after {at}");
        assert_eq!(first.sampling, second.sampling);
        let migrated = |request: &armature_contracts::worker::v1::GenerateRequest| {
            request.context.as_ref().unwrap().migrated
        };
        assert!(!migrated(&first) && migrated(&second));
        let (old, new) =
            (first.context.unwrap().reservation.unwrap(), second.context.unwrap().reservation.unwrap());
        assert_eq!((old.id, old.attempt + 1), (new.id, new.attempt));
        let routed = harness.router().asked().remove(1);
        assert_eq!(routed.constraints.unwrap().exclude[0].instance_id, 0xa1);
        assert_eq!(routed.generated_tokens as usize, generated.len());
    }
}

#[tokio::test]
async fn choices_move_alone_and_keep_their_index() {
    let dying = Script { dies_after: Some(5), numbered: true, ..says(TEXT) };
    let harness = workers(vec![dying, Script { numbered: true, ..says(TEXT) }]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(true, 3)).await;
    for choice in 0..3 {
        assert_eq!(answer.streamed(choice), format!("{choice}{TEXT}"));
    }
    let moved = harness.workers[1].asked();
    let ids: std::collections::HashSet<_> =
        moved.iter().map(|it| it.context.as_ref().unwrap().reservation.clone().unwrap().id).collect();
    assert_eq!(ids.len(), moved.len());
    assert!(
        moved
            .iter()
            .all(|it| it.choices.len() == 1 || it.choices.iter().all(|c| c.generated_token_ids.is_empty()))
    );
    let mut indices: Vec<_> = moved.iter().flat_map(|it| it.choices.iter().map(|c| c.index)).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
}

#[tokio::test]
async fn a_request_given_up_goes_on_elsewhere() {
    let leaving = Script { gives_up_after: Some(3), ..says(TEXT) };
    let harness = workers(vec![leaving, says(TEXT)]).await;
    let body = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], TEXT);
    assert_eq!(harness.workers[1].asked()[0].choices[0].generated_token_ids.len(), 3);
    assert!(harness.metrics().await.contains("armature_frontend_migrations_total{model=\"tiny\"} 1"));
}

#[tokio::test]
async fn two_deaths_are_survived_and_the_third_is_typed() {
    let dying = |at| Script { dies_after: Some(at), ..says(TEXT) };
    let harness = workers(vec![dying(1), dying(1), says(TEXT)]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(true, 1)).await;
    assert_eq!(answer.streamed(0), TEXT);

    let harness = workers(vec![dying(2), dying(1), dying(1), says(TEXT)]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(true, 1)).await;
    let events = answer.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "query_of_death", "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"));
    assert!(harness.workers[3].asked().is_empty());

    // Its repeats are refused, others are not.
    let again = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await;
    assert_eq!(
        (again.status.as_u16(), again.json()["error"]["code"].clone()),
        (400, json!("query_of_death"))
    );
    let mut other = ask(false, 1);
    other["messages"][0]["content"] = json!("Hello");
    assert_eq!(harness.client().await.post("/v1/chat/completions", &other).await.status, 200);
}

#[tokio::test]
async fn a_worker_that_leaves_the_view_is_gone() {
    let silent = Script { stalls_after: Some(2), ..says(TEXT) };
    let harness = workers(vec![silent, says(TEXT)]).await;
    let mut client = harness.client().await;
    let body = ask(false, 1);
    let answer = client.post("/v1/chat/completions", &body);
    let leave = async {
        harness.workers[0].running.subscribe().wait_for(|running| *running == 1).await.unwrap();
        harness.discovery.remove(0xa1);
    };
    let (answer, ()) = tokio::join!(answer, leave);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], TEXT);
}

#[tokio::test]
async fn a_refusal_is_tried_elsewhere_at_most_three_times() {
    let busy = || Fault::new(Reason::WorkerBusy, "full").retry_after(std::time::Duration::from_secs(4));
    let refusing = || Script { refusals: vec![busy()], ..says(TEXT) };
    let harness = workers(vec![refusing(), refusing(), refusing(), says(TEXT)]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["x-armature-decode-worker"], "00000000000000a4");
    assert!(harness.metrics().await.contains("armature_frontend_retries_total 3"));

    let harness = workers(vec![refusing(), refusing(), refusing(), refusing(), says(TEXT)]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "4");
    assert!(harness.workers[4].asked().is_empty());
}

#[tokio::test]
async fn retries_have_a_budget() {
    // 10 % of the requests and 3 a second over 10 s: 30 in the first moments, and one for each ten requests.
    let busy = || Fault::new(Reason::WorkerBusy, "full");
    let refusing = Script { refusals: vec![busy(); 200], ..says("x") };
    let harness = workers(vec![refusing, says("x")]).await;
    let mut client = harness.client().await;
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..100 {
        match client.post("/v1/chat/completions", &ask(false, 1)).await.status.as_u16() {
            200 => answered += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(answered >= 30 && refused >= 30, "{answered} answered, {refused} refused");
}

#[tokio::test]
async fn another_error_is_not_tried_elsewhere() {
    let wrong = Fault::invalid("sampling.top_k", "not here");
    let harness = workers(vec![Script { refusals: vec![wrong], ..says("x") }, says("x")]).await;
    let answer = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await;
    assert_eq!(answer.status, 400);
    assert!(harness.workers[1].asked().is_empty());
}

#[tokio::test]
async fn a_move_to_another_compatibility_key_is_told() {
    use armature_contracts::discovery::v1::Component;
    use armature_contracts::kv::v1::KvLayout;
    use prost::Message as _;
    let dying = Script { dies_after: Some(2), ..says(TEXT) };
    let harness = workers(vec![dying, says(TEXT)]).await;
    let mut other = crate::harness::card(&harness.discovery, MODEL);
    other.layout = Some(KvLayout { compat_key: bytes::Bytes::from_static(b"other"), ..Default::default() });
    let digest = harness.discovery.store(other.encode_to_vec());
    harness.discovery.put(crate::harness::instance(0xa2, Component::Worker, "worker-a2", digest));
    // A name of its own for the second card, to see that it has arrived.
    let mut marked = other.clone();
    marked.aliases = vec!["arrived".into()];
    let digest = harness.discovery.store(marked.encode_to_vec());
    harness.discovery.put(crate::harness::instance(0xa2, Component::Worker, "worker-a2", digest));
    harness.listed("arrived").await;
    let finished = crate::grpc::finished(&harness).await;
    assert_eq!((finished.migrations, finished.migrated_inexact), (1, true));
}

#[tokio::test]
async fn a_worker_that_cannot_be_reached_costs_no_budget_and_is_no_death() {
    let harness = workers(vec![says(TEXT), says(TEXT)]).await;
    harness.router().workers.lock().unwrap().insert(0, (0xaf, "mem:nobody".into()));
    for _ in 0..50 {
        let answer = harness.client().await.post("/v1/chat/completions", &ask(false, 1)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(harness.metrics().await.contains("armature_frontend_retries_total 0"));
}
