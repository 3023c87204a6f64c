//! Cards and artifacts.

use armature_contracts::discovery::v1::{
    DeregisterRequest, GetArtifactRequest, GetCardRequest, Instance, ModelCard, PutArtifactRequest,
    PutCardRequest,
};
use armature_contracts::error::Reason;
use armature_contracts::{MAX_ARTIFACT_BYTES, MAX_CARD_BYTES};
use armature_discovery::config::{Config, LimitsConfig};
use armature_discovery::domain::instance::Digest;
use bytes::Bytes;
use prost::Message as _;

use crate::fleet::{Fleet, card, put_card, reason, register, worker};

fn digest(content: &[u8]) -> Bytes {
    Digest::of(content).0.to_vec().into()
}

#[tokio::test(start_paused = true)]
async fn a_broken_card_is_refused_and_others_are_unaffected() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let good = card(16);
    put_card(&mut client, &good).await;
    let garbage = Bytes::from_static(b"\xff\xff\xff\xff");
    let unnamed = Bytes::from(ModelCard { served_name: String::new(), ..card(16) }.encode_to_vec());
    let huge = Bytes::from(vec![0; MAX_CARD_BYTES + 1]);
    for (digest, card, expected) in [
        (digest(&garbage), garbage, Reason::ArtifactInvalid),
        (digest(&unnamed), unnamed, Reason::ArtifactInvalid),
        (digest(&huge), huge, Reason::ArtifactInvalid),
        (digest(b"other"), good.encode_to_vec().into(), Reason::ArtifactInvalid),
        (Bytes::from_static(b"short"), good.encode_to_vec().into(), Reason::InvalidArgument),
    ] {
        assert_eq!(reason(client.put_card(PutCardRequest { digest, card }).await), expected);
    }
    let bytes = good.encode_to_vec();
    let read = client.get_card(GetCardRequest { digest: digest(&bytes) }).await.unwrap().into_inner();
    assert_eq!(read.card, bytes);
    register(&mut client, &worker(1, &good)).await.unwrap();
}

/// Cards and artifacts are bytes here: readers of that version find what this one does not know.
#[tokio::test(start_paused = true)]
async fn what_a_newer_version_has_added_to_a_card_is_kept() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    // A role that nobody knows yet, and field 15000, five bytes.
    let newer = ModelCard { roles: vec![1, 99], ..card(16) };
    let bytes = Bytes::from([&newer.encode_to_vec()[..], b"\xc2\xa9\x07\x05newer"].concat());
    client.put_card(PutCardRequest { digest: digest(&bytes), card: bytes.clone() }).await.unwrap();
    let worker = Instance { card_digest: digest(&bytes), ..worker(1, &newer) };
    register(&mut client, &worker).await.unwrap();
    let read = client.get_card(GetCardRequest { digest: digest(&bytes) }).await.unwrap().into_inner();
    assert_eq!(read.card, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_worker_needs_its_card_and_the_block_size_of_the_others() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let unknown = register(&mut client, &worker(1, &card(16))).await.unwrap_err();
    assert_eq!(unknown.reason, Reason::CardUnknown);
    put_card(&mut client, &card(16)).await;
    put_card(&mut client, &card(32)).await;
    register(&mut client, &worker(1, &card(16))).await.unwrap();
    let other = register(&mut client, &worker(2, &card(32))).await.unwrap_err();
    assert_eq!(other.reason, Reason::BlockSizeMismatch);
    assert!(other.message.contains("32") && other.message.contains("16"), "{}", other.message);
    let mut elsewhere = worker(3, &card(32));
    elsewhere.namespace = "other".into();
    register(&mut client, &elsewhere).await.unwrap();
    register(&mut client, &worker(1, &card(32))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn artifacts_are_verified_and_bounded() {
    let limits = LimitsConfig { artifact_bytes: 1000, ..LimitsConfig::default() };
    let server = Fleet::new().serve(Config { limits, ..Fleet::config("discovery") }).await;
    let mut client = server.client();
    let put = |content: &Bytes| PutArtifactRequest { digest: digest(content), content: content.clone() };
    let first = Bytes::from(vec![1; 600]);
    client.put_artifact(put(&first)).await.unwrap();
    let get = GetArtifactRequest { digest: digest(&first) };
    assert_eq!(client.get_artifact(get.clone()).await.unwrap().into_inner().content, first);
    let wrong = PutArtifactRequest { digest: digest(&first), content: Bytes::from_static(b"other") };
    assert_eq!(reason(client.put_artifact(wrong).await), Reason::ArtifactInvalid);
    client.put_artifact(put(&Bytes::from(vec![2; 600]))).await.unwrap();
    assert_eq!(reason(client.get_artifact(get).await), Reason::ArtifactUnknown);
    assert_eq!(reason(client.put_artifact(put(&Bytes::from(vec![3; 1001]))).await), Reason::Overloaded);
    // The size is looked at before the digest; the message itself passes.
    let content = Bytes::from(vec![0; MAX_ARTIFACT_BYTES + 1]);
    let huge = PutArtifactRequest { digest: digest(b""), content };
    assert_eq!(reason(client.put_artifact(huge).await), Reason::ArtifactInvalid);
}

#[tokio::test(start_paused = true)]
async fn what_a_shown_card_names_is_not_evicted() {
    let limits = LimitsConfig { artifact_bytes: 1000, ..LimitsConfig::default() };
    let server = Fleet::new().serve(Config { limits, ..Fleet::config("discovery") }).await;
    let mut client = server.client();
    let put = |content: &Bytes| PutArtifactRequest { digest: digest(content), content: content.clone() };
    let tokenizer = Bytes::from(vec![1; 600]);
    client.put_artifact(put(&tokenizer)).await.unwrap();
    let card = ModelCard { tokenizer_digest: digest(&tokenizer), ..card(16) };
    put_card(&mut client, &card).await;
    register(&mut client, &worker(1, &card)).await.unwrap();
    assert_eq!(reason(client.put_artifact(put(&Bytes::from(vec![2; 600]))).await), Reason::Overloaded);
    client.deregister(DeregisterRequest { instance_id: 1 }).await.unwrap();
    client.put_artifact(put(&Bytes::from(vec![2; 600]))).await.unwrap();
}
