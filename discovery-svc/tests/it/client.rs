//! The service and the clients that every other service uses.

use std::time::Duration;

use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::discovery_client::{
    Component, Discovery, Instance, Members, ModelCardBytes, RegistrationOptions, Status, WatchOptions,
};
use armature_svc_kit::drain::Drain;
use prost::Message as _;
use tokio_util::task::AbortOnDropHandle;

use crate::fleet::{Fleet, card, pass};

fn discovery(fleet: &Fleet) -> Discovery {
    let channels = Channels::new(fleet.network.clone(), ChannelOptions::default()).unwrap();
    Discovery::new(channels, vec![Address::mem("discovery")]).unwrap()
}

fn watch(fleet: &Fleet) -> (AbortOnDropHandle<()>, Members) {
    let options = WatchOptions {
        namespace: "default".to_owned(),
        components: vec![Component::Worker],
        last_good: None,
        probe: std::sync::Arc::new(|_| Box::pin(std::future::ready(true))),
    };
    let (watcher, members) = discovery(fleet).watch(options);
    (AbortOnDropHandle::new(tokio::spawn(watcher.run(Drain::new()))), members)
}

async fn until(members: &Members, status: Option<Status>) {
    let mut views = members.subscribe();
    let is = |id| {
        move |view: &std::sync::Arc<armature_svc_kit::discovery_client::View>| {
            view.instances.get(&id).map(|it| it.status) == status
        }
    };
    views.wait_for(is(InstanceId(1))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_registers_survives_a_restart_and_leaves() {
    let fleet = Fleet::new();
    let server = fleet.serve(Fleet::config("discovery")).await;
    let model = ModelCardBytes { card: card(16).encode_to_vec().into(), artifacts: vec![] };
    let instance = Instance::starting(InstanceId(1), "default", Component::Worker, &Address::mem("worker"));
    let options =
        RegistrationOptions { instance, model: Some(model), fenced: Box::new(|id| InstanceId(id.0 + 1)) };
    let (registrar, registration) = discovery(&fleet).register(options);
    let registrar = tokio::spawn(registrar.run(Drain::new()));
    let (_watching, members) = watch(&fleet);
    registration.set_status(Status::Ready).await;
    until(&members, Some(Status::Ready)).await;
    pass(31).await;

    server.kill().await;
    pass(10).await;
    let server = fleet.serve(Fleet::config("discovery")).await;
    let mut views = members.subscribe();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    while let Ok(Ok(())) = tokio::time::timeout_at(end, views.changed()).await {
        let view = views.borrow_and_update().clone();
        let status = view.instances.get(&InstanceId(1)).map(|it| it.status);
        assert_eq!(status, Some(Status::Ready), "an emptied registry heals unseen");
    }
    registration.set_status(Status::Draining).await;
    until(&members, Some(Status::Draining)).await;
    registration.deregister().await;
    until(&members, None).await;
    registrar.await.unwrap();
    server.stop().await;
}
