//! Between generated and domain types; what is malformed is refused here, by the name of its field.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1 as wire;
use armature_contracts::error::Fault;
use armature_contracts::ids::InstanceId;
use prost_types::Duration as WireDuration;

use crate::domain::instance::{Component, Digest, Instance, LeaseEpoch, Namespace, Status};
use crate::domain::view::{Revision, Selector, Told, ViewEpoch};

/// Longest namespace, name of a label or address, and value of either, in bytes.
const MAX_TEXT_BYTES: usize = 256;
/// Most labels of an instance.
const MAX_LABELS: usize = 64;
/// Most addresses of an instance.
const MAX_ADDRESSES: usize = 16;
/// Bounds of a leadership without renewal.
const LEADER_TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// An instance as it registers itself.
pub fn instance(wire: Option<wire::Instance>) -> Result<Instance, Fault> {
    let wire = wire.ok_or_else(|| Fault::invalid("instance", "is missing"))?;
    let component = component("instance.component", wire.component)?;
    let card = match wire.card_digest.len() {
        0 => None,
        _ => Some(digest("instance.card_digest", &wire.card_digest)?),
    };
    if card.is_none() && component == Component::Worker {
        return Err(Fault::invalid("instance.card_digest", "is missing: a worker has a card"));
    }
    if wire.addresses.is_empty() {
        return Err(Fault::invalid("instance.addresses", "is empty: nobody could reach the instance"));
    }
    Ok(Instance {
        id: instance_id("instance.instance_id", wire.instance_id)?,
        namespace: namespace("instance.namespace", wire.namespace)?,
        component,
        addresses: texts("instance.addresses", wire.addresses, MAX_ADDRESSES)?,
        card,
        status: status("instance.status", wire.status)?,
        epoch: lease_epoch(wire.lease_epoch)?,
        labels: texts("instance.labels", wire.labels, MAX_LABELS)?,
        boot_id: text("instance.boot_id", wire.boot_id)?,
    })
}

/// An epoch that was granted once; refuses what would leave no room to grow.
fn lease_epoch(epoch: u64) -> Result<LeaseEpoch, Fault> {
    match epoch.leading_zeros() {
        0 => Err(Fault::invalid("instance.lease_epoch", "was never granted: it has 64 bits")),
        _ => Ok(LeaseEpoch(epoch)),
    }
}

/// An id that is not 0.
pub fn instance_id(field: &str, id: u64) -> Result<InstanceId, Fault> {
    if id == 0 { Err(Fault::invalid(field, "is 0")) } else { Ok(InstanceId(id)) }
}

/// A status that an instance may publish.
pub fn status(field: &str, status: i32) -> Result<Status, Fault> {
    match wire::InstanceStatus::try_from(status) {
        Ok(wire::InstanceStatus::Starting) => Ok(Status::Starting),
        Ok(wire::InstanceStatus::Ready) => Ok(Status::Ready),
        Ok(wire::InstanceStatus::Draining) => Ok(Status::Draining),
        _ => Err(Fault::invalid(field, "is none of STARTING, READY, DRAINING")),
    }
}

/// A digest of 32 bytes.
pub fn digest(field: &str, bytes: &[u8]) -> Result<Digest, Fault> {
    Digest::try_from(bytes)
        .map_err(|error| Fault::invalid(field, format!("has {} bytes: {error}", bytes.len())))
}

/// The name of a leadership.
pub fn leader_name(name: String) -> Result<String, Fault> {
    if name.is_empty() { Err(Fault::invalid("name", "is empty")) } else { text("name", name) }
}

/// How long a leadership lasts without renewal.
pub fn leader_ttl(ttl: Option<WireDuration>) -> Result<Duration, Fault> {
    let ttl = ttl.ok_or_else(|| Fault::invalid("ttl", "is missing"))?;
    armature_contracts::convert::duration(ttl)
        .filter(|ttl| LEADER_TTL.contains(ttl))
        .ok_or_else(|| Fault::invalid("ttl", "is not from 1 s to 60 s"))
}

/// A span of time.
pub fn duration(duration: Duration) -> WireDuration {
    WireDuration::try_from(duration).unwrap_or(WireDuration { seconds: i64::MAX, nanos: 0 })
}

/// What a watcher wants and what it has. Components of a newer version are passed over: nobody here is one.
pub fn selector(request: wire::WatchRequest) -> Result<(Selector, Option<(ViewEpoch, Revision)>), Fault> {
    let components: BTreeSet<_> =
        request.components.iter().filter_map(|it| component("components", *it).ok()).collect();
    if components.is_empty() && !request.components.is_empty() {
        return Err(Fault::invalid("components", "names no known component"));
    }
    let selector = Selector { namespace: namespace("namespace", request.namespace)?, components };
    let seen = (ViewEpoch(request.epoch), Revision(request.from_revision));
    Ok((selector, (request.from_revision != 0).then_some(seen)))
}

/// What a watcher is told.
pub fn told(told: Told, epoch: ViewEpoch) -> wire::WatchResponse {
    use wire::view_delta::Change;
    use wire::watch_response::Event;
    let delta = |revision: Revision, change| {
        Event::Delta(wire::ViewDelta { revision: revision.0, change: Some(change) })
    };
    let event = match told {
        Told::Snapshot { revision, instances } => Event::Snapshot(wire::ViewSnapshot {
            revision: revision.0,
            epoch: epoch.0,
            instances: instances.iter().map(shown).collect(),
        }),
        Told::Put { revision, instance } => delta(revision, Change::Put(shown(&instance))),
        Told::Gone { revision, id, epoch } => {
            delta(revision, Change::Gone(wire::InstanceGone { instance_id: id.0, lease_epoch: epoch.0 }))
        }
    };
    wire::WatchResponse { event: Some(event) }
}

fn shown(instance: &Arc<Instance>) -> wire::Instance {
    let component = match instance.component {
        Component::Worker => wire::Component::Worker,
        Component::Router => wire::Component::Router,
        Component::Frontend => wire::Component::Frontend,
        Component::Planner => wire::Component::Planner,
        Component::Kvbm => wire::Component::Kvbm,
    };
    let status = match instance.status {
        Status::Starting => wire::InstanceStatus::Starting,
        Status::Ready => wire::InstanceStatus::Ready,
        Status::Draining => wire::InstanceStatus::Draining,
        Status::Suspect => wire::InstanceStatus::Suspect,
    };
    wire::Instance {
        instance_id: instance.id.0,
        namespace: instance.namespace.0.clone(),
        component: component.into(),
        addresses: instance.addresses.clone().into_iter().collect(),
        card_digest: instance.card.map(|digest| digest.0.to_vec().into()).unwrap_or_default(),
        status: status.into(),
        lease_epoch: instance.epoch.0,
        labels: instance.labels.clone().into_iter().collect(),
        boot_id: instance.boot_id.clone(),
    }
}

fn component(field: &str, component: i32) -> Result<Component, Fault> {
    match wire::Component::try_from(component) {
        Ok(wire::Component::Worker) => Ok(Component::Worker),
        Ok(wire::Component::Router) => Ok(Component::Router),
        Ok(wire::Component::Frontend) => Ok(Component::Frontend),
        Ok(wire::Component::Planner) => Ok(Component::Planner),
        Ok(wire::Component::Kvbm) => Ok(Component::Kvbm),
        Ok(wire::Component::Unspecified) | Err(_) => Err(Fault::invalid(field, "is no known component")),
    }
}

fn namespace(field: &str, name: String) -> Result<Namespace, Fault> {
    if name.is_empty() { Ok(Namespace::default()) } else { text(field, name).map(Namespace) }
}

fn text(field: &str, text: String) -> Result<String, Fault> {
    match text.len() {
        0..=MAX_TEXT_BYTES => Ok(text),
        length => Err(Fault::invalid(field, format!("has {length} bytes, more than {MAX_TEXT_BYTES}"))),
    }
}

fn texts(
    field: &str,
    entries: HashMap<String, String>,
    limit: usize,
) -> Result<BTreeMap<String, String>, Fault> {
    if entries.len() > limit {
        return Err(Fault::invalid(field, format!("has {} entries, more than {limit}", entries.len())));
    }
    entries.into_iter().map(|(name, value)| Ok((text(field, name)?, text(field, value)?))).collect()
}
