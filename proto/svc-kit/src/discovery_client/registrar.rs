//! Keeps one instance registered, whatever happens to discovery.
//!
//! Register, then heartbeats on one stream; whenever the stream breaks, is not answered, or the
//! server does not know the lease, register again (at the next endpoint, if need be). An emptied
//! registry so heals within a heartbeat. An id that was announced gone is refused as
//! INSTANCE_FENCED: then the owner is asked for a new one.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1 as proto;
use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::blobs::{BlobError, ModelCardBytes};
use super::instance::{Instance, Status};
use super::{ANSWER, Discovery, Rounds};
use crate::drain::Drain;

/// Time between heartbeats unless discovery asks for another.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Bounds of what discovery may ask for.
const HEARTBEAT_BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A stream without an answer for this long is taken for broken; it is the grace that discovery
/// gives a broken stream.
const SILENCE: Duration = Duration::from_secs(5);

/// What to register, and how to go on when its id is fenced.
pub struct RegistrationOptions {
    /// The instance, with its first status.
    pub instance: Instance,
    /// Its card and artifacts; stored first, and again when discovery has lost them. The
    /// instance's `card` is set to its digest.
    pub model: Option<ModelCardBytes>,
    /// Called with an id that is fenced, gives the one to go on with. The owner aborts its
    /// transfers and numbers its events from 1.
    pub fenced: Box<dyn FnMut(InstanceId) -> InstanceId + Send>,
}

/// What discovery has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The id in use.
    pub id: InstanceId,
    /// The status that readers see; `None` while not registered.
    pub status: Option<Status>,
    /// Epoch of the lease; 0 before the first registration.
    pub lease_epoch: u64,
    /// True when discovery has confirmed the deregistration.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    status: Status,
    gone: bool,
}

/// Steers a registration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registration {
    wanted: Arc<watch::Sender<Wanted>>,
    published: watch::Receiver<Published>,
}

impl Registration {
    /// The id in use; another one after a fence.
    pub fn id(&self) -> InstanceId {
        self.published.borrow().id
    }

    /// Asks for a status to be published.
    pub fn request_status(&self, status: Status) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(&mut wanted.status, status) != status);
    }

    /// Publishes a status and waits until discovery has it, however long discovery is away.
    pub async fn set_status(&self, status: Status) {
        self.request_status(status);
        self.reached(|published| published.status == Some(status) || published.gone).await;
    }

    /// Withdraws the instance and waits until discovery has it, however long discovery is away.
    pub async fn deregister(&self) {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(&mut wanted.gone, true));
        self.reached(|published| published.gone).await;
    }

    /// Everything discovery acknowledges.
    pub fn subscribe(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    async fn reached(&self, condition: impl FnMut(&Published) -> bool) {
        // Fails when the registrar has ended, and then nothing more will be reached.
        let _ = self.published.clone().wait_for(condition).await;
    }
}

/// Does the work of a [`Registration`]; [`Registrar::run`] runs it.
pub struct Registrar {
    discovery: Discovery,
    instance: Instance,
    model: Option<ModelCardBytes>,
    fenced: Box<dyn FnMut(InstanceId) -> InstanceId + Send>,
    wanted: watch::Receiver<Wanted>,
    published: watch::Sender<Published>,
    /// Keeps the channel open when every handle is gone: then the registration stays as it is.
    _steering: Arc<watch::Sender<Wanted>>,
}

impl Discovery {
    /// Registers an instance as soon as the registrar runs.
    pub fn register(&self, options: RegistrationOptions) -> (Registrar, Registration) {
        let RegistrationOptions { mut instance, model, fenced } = options;
        if let Some(model) = &model {
            instance.card = Some(super::Digest::of(&model.card));
        }
        let wanted = Wanted { status: instance.status, gone: false };
        let (wanted, wanted_receiver) = watch::channel(wanted);
        let wanted = Arc::new(wanted);
        let published = Published { id: instance.id, status: None, lease_epoch: 0, gone: false };
        let (published, published_receiver) = watch::channel(published);
        let registrar = Registrar {
            discovery: self.clone(),
            instance,
            model,
            fenced,
            wanted: wanted_receiver,
            published,
            _steering: wanted.clone(),
        };
        (registrar, Registration { wanted, published: published_receiver })
    }
}

/// How a lease ended.
enum Ended {
    /// Discovery lost it or the stream; register again.
    Lost(String),
    /// The owner is done.
    Deregister,
}

impl Registrar {
    /// Keeps the instance registered until it is deregistered or `drain` says stop.
    pub async fn run(mut self, drain: Drain) {
        tokio::select! {
            () = self.keep() => {}
            () = drain.stopping() => {}
        }
    }

    async fn keep(&mut self) {
        let mut rounds = Rounds::new(&self.discovery);
        loop {
            if self.wanted.borrow_and_update().gone {
                if Box::pin(self.deregister()).await {
                    return;
                }
                rounds.failed().await;
                continue;
            }
            match Box::pin(self.open()).await {
                Ok(beat) => {
                    rounds.succeeded();
                    let id = self.instance.id;
                    tracing::info!(instance = %id, status = ?self.instance.status, "registered with discovery");
                    match Box::pin(self.heartbeats(beat)).await {
                        Ended::Deregister => continue,
                        Ended::Lost(why) => {
                            tracing::info!(instance = %id, why, "lease lost, registering again");
                            self.published.send_modify(|published| published.status = None);
                        }
                    }
                }
                Err(fault) if fault.reason == Reason::InstanceFenced => {
                    let old = self.instance.id;
                    let new = (self.fenced)(old);
                    tracing::warn!(fenced = %old, instance = %new, "instance id is fenced, going on under a new one");
                    self.instance.id = new;
                    self.published.send_modify(|published| {
                        *published = Published { id: new, status: None, lease_epoch: 0, gone: false };
                    });
                    rounds.failed().await;
                }
                Err(fault) => {
                    tracing::warn!(reason = fault.reason.as_str(), error = %fault, "cannot register with discovery");
                    // Also waits for the owner: it may have given up meanwhile.
                    tokio::select! {
                        () = rounds.failed() => {}
                        _ = self.wanted.changed() => {}
                    }
                }
            }
        }
    }

    /// Registers, with what discovery may have lost. Returns the interval of heartbeats.
    async fn open(&mut self) -> Result<Duration, Fault> {
        self.instance.status = self.wanted.borrow_and_update().status;
        let answer = match (register(&self.discovery, &self.instance).await, &self.model) {
            (Err(fault), Some(model)) if fault.reason == Reason::CardUnknown => {
                put(&self.discovery, model).await?;
                register(&self.discovery, &self.instance).await?
            }
            (answer, _) => answer?,
        };
        self.published.send_modify(|published| {
            published.status = Some(self.instance.status);
            published.lease_epoch = answer.lease_epoch;
        });
        let beat = answer.heartbeat_interval.and_then(armature_contracts::convert::duration);
        Ok(beat
            .filter(|beat| !beat.is_zero())
            .unwrap_or(HEARTBEAT)
            .clamp(HEARTBEAT_BOUNDS.0, HEARTBEAT_BOUNDS.1))
    }

    /// Beats until the lease is lost or no longer wanted; publishes changes of status meanwhile.
    async fn heartbeats(&mut self, beat: Duration) -> Ended {
        let lost = |status: tonic::Status| Ended::Lost(status.to_string());
        let (instance_id, lease_epoch) = (self.instance.id.0, self.published.borrow().lease_epoch);
        let (beats, requests) = mpsc::channel(4);
        let (turn, mut client) = self.discovery.endpoint();
        let stream = timeout(ANSWER, async {
            // The first beat goes along, for a server may answer only when it has read one.
            let _ = beats.try_send(proto::KeepAliveRequest { instance_id, lease_epoch });
            client.keep_alive(ReceiverStream::new(requests)).await
        });
        let mut answers = match stream.await {
            Ok(Ok(stream)) => stream.into_inner(),
            Ok(Err(status)) => {
                self.discovery.leave(turn);
                return lost(status);
            }
            Err(_) => {
                self.discovery.leave(turn);
                return Ended::Lost("no answer to the first heartbeat".to_owned());
            }
        };
        let mut ticks = interval(beat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answered = Instant::now();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    // Full only when the server reads nothing, and then SILENCE ends it.
                    let _ = beats.try_send(proto::KeepAliveRequest { instance_id, lease_epoch });
                }
                answer = answers.message() => match answer {
                    Ok(Some(answer)) if answer.register_again => {
                        return Ended::Lost("discovery does not know the lease".to_owned());
                    }
                    Ok(Some(_)) => answered = Instant::now(),
                    Ok(None) => return Ended::Lost("stream ended".to_owned()),
                    Err(status) => return lost(status),
                },
                () = sleep_until(answered + SILENCE) => {
                    self.discovery.leave(turn);
                    return Ended::Lost("heartbeats are not answered".to_owned());
                }
                _ = self.wanted.changed() => {
                    let wanted = *self.wanted.borrow_and_update();
                    if wanted.gone {
                        return Ended::Deregister;
                    }
                    if let Err(status) = self.publish(wanted.status).await {
                        return lost(status);
                    }
                }
            }
        }
    }

    async fn publish(&mut self, status: Status) -> Result<(), tonic::Status> {
        let request = proto::SetStatusRequest {
            instance_id: self.instance.id.0,
            status: proto::InstanceStatus::from(status).into(),
        };
        self.discovery.call(|mut client| async move { client.set_status(request).await }).await?;
        self.instance.status = status;
        self.published.send_modify(|published| published.status = Some(status));
        Ok(())
    }

    /// True when discovery no longer has the instance.
    async fn deregister(&mut self) -> bool {
        let request = proto::DeregisterRequest { instance_id: self.instance.id.0 };
        let answer = self.discovery.call(|mut client| async move { client.deregister(request).await }).await;
        let settled = match answer {
            Ok(_) => true,
            Err(status) => {
                let fault = Fault::from_status(&status);
                let unknown = matches!(fault.reason, Reason::LeaseUnknown | Reason::InstanceFenced);
                if !unknown {
                    tracing::warn!(error = %fault, "cannot deregister");
                }
                unknown
            }
        };
        if settled {
            self.published.send_modify(|published| (published.status, published.gone) = (None, true));
        }
        settled
    }
}

async fn register(discovery: &Discovery, instance: &Instance) -> Result<proto::RegisterResponse, Fault> {
    let request = proto::RegisterRequest { instance: Some(instance.into()) };
    let answer = discovery
        .call(|mut client| {
            let request = request.clone();
            async move { client.register(request).await }
        })
        .await;
    answer.map_err(|status| Fault::from_status(&status))
}

async fn put(discovery: &Discovery, model: &ModelCardBytes) -> Result<(), Fault> {
    match discovery.put(model).await {
        Ok(_) => Ok(()),
        Err(BlobError::Discovery(fault)) => Err(fault),
        Err(error) => Err(Fault::new(Reason::ArtifactInvalid, error.to_string())),
    }
}
