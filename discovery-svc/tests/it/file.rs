//! Static instances from a watched file. In real time: the system tells of changes, not the test's clock.

use std::path::Path;

use armature_contracts::discovery::v1::{GetArtifactRequest, GetCardRequest, InstanceStatus, ModelCard};
use armature_discovery::app::{self, Parts, StartError};
use armature_discovery::config::{BackendConfig, BackendKind, Config};
use armature_discovery::domain::instance::Digest;
use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use prometheus_client::registry::Registry;
use prost::Message as _;

use crate::fleet::{Fleet, Lease, View, router};
use crate::operations::page;

const CARD: &str = r#"
[card.tiny]
served_name = "tiny"
model_digest = "0707"
tokenizer = "tokenizer.json"
context_length = 128
block_size = 16
"#;

fn worker(id: u64, more: &str) -> String {
    format!(
        "[[instance]]\nid = \"{id:016x}\"\ncomponent = \"worker\"\naddresses = {{ grpc = \"h:{id}\" }}\n{more}\n"
    )
}

fn config(path: &Path) -> Config {
    let backend = BackendConfig { kind: BackendKind::File, file: Some(path.to_owned()), reload_seconds: 1 };
    Config { backend, admin: Some(Address::mem("admin")), ..Fleet::config("discovery") }
}

/// Replaces a file as editors do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn the_view_follows_the_file_and_a_broken_one_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("instances.toml");
    std::fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    std::fs::write(&path, format!("{}{CARD}", worker(1, "card = \"tiny\""))).unwrap();
    let fleet = Fleet::new();
    let server = fleet.serve(config(&path)).await;
    let mut client = server.client();
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    let digest = view.instances[&1].card_digest.clone();
    let card = client.get_card(GetCardRequest { digest }).await.unwrap().into_inner().card;
    let card = ModelCard::decode(card).unwrap();
    assert_eq!((card.served_name.as_str(), card.block_size), ("tiny", 16));
    assert_eq!(card.tokenizer_digest, Digest::of(b"{}").0.to_vec());
    let tokenizer = GetArtifactRequest { digest: card.tokenizer_digest };
    assert_eq!(&client.get_artifact(tokenizer).await.unwrap().into_inner().content[..], b"{}");

    let _router = Lease::open(&client, &router(9)).await;
    view.until_ids(&[1, 9]).await;
    replace(
        &path,
        &format!("{}{}{CARD}", worker(1, "card = \"tiny\"\nstatus = \"draining\""), worker(2, "")),
    );
    view.until(|view| view.len() == 3 && view[&1].status() == InstanceStatus::Draining).await;

    replace(&path, &format!("{}card = \"none\"\n", worker(2, "")));
    while !page(&fleet.network, server.admin(), "/metrics").await.contains("file_errors_total 1") {
        tokio::task::yield_now().await;
    }
    replace(&path, &worker(3, ""));
    view.until_ids(&[3, 9]).await;
    replace(&path, &format!("{}{}", worker(1, ""), worker(3, "")));
    view.until_ids(&[1, 3, 9]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_file_that_is_wrong_at_the_start_is_told_by_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("instances.toml");
    for (text, line, problem) in [
        ("[[instance]]\nid = 1\n".to_owned(), "line 2", "expected"),
        (worker(0, ""), "line 2", "not all 0"),
        (format!("{}{}", worker(1, ""), worker(1, "")), "line 7", "twice"),
        (worker(1, "card = \"tiny\""), "line 5", "no card \"tiny\""),
        (CARD.replace("0707", "070"), "line 4", "hex"),
        (
            CARD.replace("tokenizer = \"tokenizer.json\"", "").replace("size = 16", "size = 0"),
            "line 2",
            "block_size",
        ),
        (CARD.to_owned(), "tokenizer.json", "No such file"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let parts = Parts { network: Network::new(), registry: Registry::default(), drain: Drain::new() };
        let error = app::start(config(&path), parts).await.unwrap_err();
        assert!(matches!(error, StartError::File { .. }));
        let error = error.to_string();
        assert!(error.contains(line) && error.contains(problem), "{text}\n{error}");
    }
}
