//! Many clients at once, patient and impatient ones: every patient one is served in full, and nothing is left behind.

use std::collections::BTreeMap;

use armature_e2e::client::Client;
use armature_e2e::suite::Suite;
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CLIENTS: usize = 200;

/// One request of the mix.
#[derive(Debug, Clone)]
struct Plan {
    body: Value,
    stream: bool,
    n: u64,
    max_tokens: u64,
    prompt_tokens: u64,
    /// Events, or milliseconds of a plain request, after which the client vanishes.
    patience: Option<u64>,
}

/// A mix that is the same for the same seed; `vanish` is the share of clients that go away.
fn plans(seed: u64, vanish: f64) -> Vec<Plan> {
    let mut rng = StdRng::seed_from_u64(seed);
    let plan = |i: usize| {
        let (stream, n, max_tokens) = (rng.random(), rng.random_range(1..=3), rng.random_range(1..=60));
        // A third of the prompts begin alike, some are long enough for a prefill worker, no two are equal.
        let shared = *["", "One beginning that many share, long enough for some blocks of sixteen tokens. "]
            .choose(&mut rng)
            .unwrap();
        let prompt = format!("{shared}{i} {}", "word ".repeat(rng.random_range(1..=300)));
        let mut body = json!({
            "model": "sim", "prompt": prompt, "n": n, "max_tokens": max_tokens, "seed": i, "stream": stream,
        });
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let patience = rng.random_bool(vanish).then(|| rng.random_range(0..150));
        Plan { body, stream, n, max_tokens, prompt_tokens: prompt.len() as u64, patience }
    };
    (0..CLIENTS).map(plan).collect()
}

/// What a whole answer must say.
fn check(plan: &Plan, texts: &BTreeMap<u64, String>, reasons: &BTreeMap<u64, String>, usage: &Value) {
    let expected: BTreeMap<u64, String> = (0..plan.n).map(|choice| (choice, "length".to_owned())).collect();
    assert_eq!(reasons, &expected, "{plan:?}");
    // A token of the simulated engine is a byte.
    assert!(
        texts.len() as u64 == plan.n && texts.values().all(|it| it.len() as u64 == plan.max_tokens),
        "{texts:?} {plan:?}"
    );
    assert_eq!(usage["completion_tokens"], plan.n * plan.max_tokens, "{plan:?}");
    assert_eq!(usage["prompt_tokens"], plan.prompt_tokens, "{plan:?}");
}

fn collect(choices: &Value, texts: &mut BTreeMap<u64, String>, reasons: &mut BTreeMap<u64, String>) {
    for choice in choices.as_array().unwrap() {
        let index = choice["index"].as_u64().unwrap();
        *texts.entry(index).or_default() += choice["text"].as_str().unwrap();
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert!(reasons.insert(index, reason.to_owned()).is_none(), "choice {index} ends twice");
        }
    }
}

/// Plays a client; true: it was served to the end.
async fn play(client: Client, plan: Plan) -> bool {
    let (mut texts, mut reasons, mut usage) = (BTreeMap::new(), BTreeMap::new(), Value::Null);
    if plan.stream {
        let (status, _, mut chunks) = client.stream("/v1/completions", &plan.body).await.unwrap();
        assert_eq!(status, 200, "{plan:?}");
        let mut events = 0;
        while plan.patience != Some(events)
            && let Some(chunk) = chunks.next().await
        {
            events += 1;
            assert!(chunk.get("error").is_none() && chunk.get("broken").is_none(), "{chunk} {plan:?}");
            collect(&chunk["choices"], &mut texts, &mut reasons);
            if chunk["usage"].is_object() {
                usage = chunk["usage"].clone();
            }
        }
        if usage.is_null() && plan.patience == Some(events) {
            return false;
        }
    } else {
        let asked = client.post("/v1/completions", &plan.body);
        let answer = match plan.patience {
            None => asked.await.unwrap(),
            Some(patience) => {
                match tokio::time::timeout(std::time::Duration::from_millis(patience), asked).await {
                    Ok(answer) => answer.unwrap(),
                    Err(_) => return false,
                }
            }
        };
        assert_eq!(answer.status, 200, "{} {plan:?}", answer.body);
        collect(&answer.body["choices"], &mut texts, &mut reasons);
        usage = answer.body["usage"].clone();
    }
    check(&plan, &texts, &reasons, &usage);
    true
}

/// Plays all clients at once; returns how many were served to the end.
async fn play_all(suite: &Suite, plans: Vec<Plan>) -> usize {
    let mut clients = JoinSet::new();
    for plan in plans {
        clients.spawn(play(suite.client.clone(), plan));
    }
    clients.join_all().await.into_iter().filter(|served| *served).count()
}

/// A crowd that waits, then one of which 30 % vanish; all KV goes from prefill to decode workers over `transport`.
async fn crowds(transport: &str) {
    let suite = Suite::start(&["--engine", "sim", "--speedup", "10", "--transports", transport]).await;
    assert_eq!(play_all(&suite, plans(1, 0.0)).await, CLIENTS);
    suite.idle().await;
    let plans = plans(2, 0.3);
    let patient = plans.iter().filter(|plan| plan.patience.is_none()).count();
    let served = play_all(&suite, plans).await;
    assert!((patient..CLIENTS).contains(&served), "{served} of at least {patient} were served");
    suite.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patient_clients_are_all_served_whoever_goes_away() {
    crowds("shm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patient_clients_are_all_served_over_tcp_too() {
    crowds("tcp").await;
}
