//! How long a request may wait in the router for room at a worker, and whose it is. Time is virtual.

use std::time::Duration;

use armature_contracts::inference::v1::RequestContext;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::fake_worker::Script;
use crate::harness::{Harness, MODEL, Setup, says};

fn ask(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "sixteen tokens and more", "stream": stream})
}

async fn send(harness: &Harness, headers: &[(&'static str, &str)], stream: bool) -> Answer {
    let mut request = Client::request("/v1/completions", ask(stream).to_string());
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    harness.client().await.send(request).await
}

/// What routers were told, call by call.
fn told(harness: &Harness) -> Vec<RequestContext> {
    harness.router().asked().into_iter().map(|asked| asked.context.unwrap()).collect()
}

fn wait(context: &RequestContext) -> Duration {
    Duration::try_from(context.budget.unwrap().max_queue.unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_clients_wait_is_the_routers_or_the_deployments() {
    let harness = Harness::says("x").await;
    let nines = "9".repeat(40);
    for (header, expected) in
        [(None, 60_000), (Some("1500"), 1_500), (Some("0"), 0), (Some(nines.as_str()), 600_000)]
    {
        let headers: Vec<_> = header.map(|value| ("x-armature-max-queue-ms", value)).into_iter().collect();
        assert_eq!(send(&harness, &headers, false).await.status, 200);
        let told = wait(told(&harness).last().unwrap()).as_millis();
        assert!((expected - 100.min(expected)..=expected).contains(&told), "{told} for {header:?}");
    }
    for wrong in ["-1", "1.5", "NaN", ""] {
        let answer = send(&harness, &[("x-armature-max-queue-ms", wrong)], false).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error"]["param"].clone()),
            (400, json!("x-armature-max-queue-ms"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_lost_its_worker_waits_whatever_its_client_said() {
    let dying = Script { dies_after: Some(2), ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![dying, says("Hello")], ..Setup::default() }).await;
    let answer = send(&harness, &[("x-armature-max-queue-ms", "0")], true).await;
    assert_eq!(answer.streamed(0), "Hello");
    let [first, second] = &told(&harness)[..] else { panic!("it was routed once") };
    assert_eq!((first.migrated, wait(first)), (false, Duration::ZERO));
    assert!(second.migrated && wait(second) > Duration::from_secs(59), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_trusted_proxy_names_the_tenant() {
    let mut setup = Setup::default();
    setup.config.tenant_header = "x-tenant".into();
    let harness = Harness::start(setup).await;
    for tenant in ["acme", "other"] {
        assert_eq!(send(&harness, &[("x-tenant", tenant)], false).await.status, 200);
    }
    let asked = harness.router().asked();
    assert_eq!(told(&harness).iter().map(|it| it.tenant.as_str()).collect::<Vec<_>>(), ["acme", "other"]);
    // They share no KV.
    let hashes = |n: usize| asked[n].prompt.clone().unwrap().sequence_hashes;
    assert!(!hashes(0).is_empty() && hashes(0) != hashes(1));

    // Without the setting a header is nobody's name.
    let harness = Harness::says("x").await;
    assert_eq!(send(&harness, &[("x-tenant", "acme")], false).await.status, 200);
    assert_eq!(told(&harness)[0].tenant, "");
}
