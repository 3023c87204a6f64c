//! An instance stays registered, whatever happens to discovery.

use std::time::Duration;

use armature_contracts::discovery::v1::InstanceStatus;
use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::discovery_client::{
    BlobError, Component, Digest, Discovery, Instance, ModelCardBytes, Registration, RegistrationOptions,
    Status,
};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::registry::Registry;

const ID: InstanceId = InstanceId(7);

pub(crate) fn discovery(network: &Network, names: &[&str]) -> Discovery {
    let channels = Channels::new(network.clone(), ChannelOptions::default()).unwrap();
    Discovery::new(channels, names.iter().map(|name| Address::mem(*name)).collect()).unwrap()
}

fn start(discovery: &Discovery, model: Option<ModelCardBytes>) -> (Registration, JoinHandle<()>) {
    let instance = Instance::starting(ID, "default", Component::Worker, &Address::mem("worker"));
    let fenced = Box::new(|InstanceId(old)| InstanceId(old + 1));
    let options = RegistrationOptions { instance, model, fenced };
    let (registrar, registration) = discovery.register(options);
    (registration, tokio::spawn(registrar.run(Drain::new())))
}

fn has(
    id: InstanceId,
    status: InstanceStatus,
) -> impl Fn(&std::collections::BTreeMap<u64, armature_contracts::discovery::v1::Instance>) -> bool {
    move |instances| instances.get(&id.0).is_some_and(|instance| instance.status() == status)
}

#[tokio::test(start_paused = true)]
async fn from_starting_to_gone() {
    let network = Network::new();
    let registry = Registry::new(1);
    let _served = registry.serve(&network, "discovery").await;
    let (registration, task) = start(&discovery(&network, &["discovery"]), None);
    registry.until(has(ID, InstanceStatus::Starting)).await;
    registration.set_status(Status::Ready).await;
    registry.until(has(ID, InstanceStatus::Ready)).await;
    registration.set_status(Status::Draining).await;
    registry.until(has(ID, InstanceStatus::Draining)).await;
    registration.deregister().await;
    registry.until(|instances| instances.is_empty()).await;
    task.await.unwrap();
    assert!(registration.subscribe().borrow().gone);
}

#[tokio::test(start_paused = true)]
async fn an_emptied_registry_heals_with_card_and_status() {
    let network = Network::new();
    let registry = Registry::new(1);
    let _served = registry.serve(&network, "discovery").await;
    let model = ModelCardBytes { card: "card".into(), artifacts: vec!["tokenizer".into()] };
    let discovery = discovery(&network, &["discovery"]);
    let (registration, _task) = start(&discovery, Some(model));
    registration.set_status(Status::Ready).await;
    registry.empty();
    registry.until(has(ID, InstanceStatus::Ready)).await;
    assert_eq!(discovery.card(Digest::of(b"card")).await.unwrap(), "card");
    let wrong = discovery.artifact(Digest::of(b"tokenizer")).await;
    assert!(matches!(wrong, Err(BlobError::WrongDigest(_))));
}

#[tokio::test(start_paused = true)]
async fn a_fenced_instance_goes_on_under_a_new_id() {
    let network = Network::new();
    let registry = Registry::new(1);
    let _served = registry.serve(&network, "discovery").await;
    let (registration, _task) = start(&discovery(&network, &["discovery"]), None);
    registration.set_status(Status::Ready).await;
    registry.gone(ID.0);
    registry.until(has(InstanceId(8), InstanceStatus::Ready)).await;
    registration.subscribe().wait_for(|published| published.status == Some(Status::Ready)).await.unwrap();
    assert_eq!(registration.id(), InstanceId(8));
}

#[tokio::test(start_paused = true)]
async fn another_endpoint_takes_over() {
    let network = Network::new();
    let (first, second) = (Registry::new(1), Registry::new(2));
    let served = first.serve(&network, "first").await;
    let _served = second.serve(&network, "second").await;
    let (registration, _task) = start(&discovery(&network, &["first", "second"]), None);
    registration.set_status(Status::Ready).await;
    first.until(has(ID, InstanceStatus::Ready)).await;
    served.abort();
    second.until(has(ID, InstanceStatus::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn discovery_may_come_late_and_stay_away() {
    let network = Network::new();
    let (registration, _task) = start(&discovery(&network, &["discovery"]), None);
    let minute = Duration::from_secs(60);
    assert!(timeout(minute, registration.set_status(Status::Ready)).await.is_err());
    let registry = Registry::new(1);
    let served = registry.serve(&network, "discovery").await;
    registry.until(has(ID, InstanceStatus::Ready)).await;
    served.abort();
    assert!(timeout(minute, registration.deregister()).await.is_err());
}
