//! Who is in a view, in the words of its reader; the generated types stop here.

use std::collections::BTreeMap;
use std::fmt;

use armature_contracts::discovery::v1 as proto;
use armature_contracts::ids::InstanceId;

use crate::address::Address;

/// What an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// Of a newer version than this one.
    Unspecified,
    /// Runs an engine.
    Worker,
    /// Decides who computes a request.
    Router,
    /// Faces the clients.
    Frontend,
    /// Decides how many of each there should be.
    Planner,
    /// Keeps KV below the device.
    Kvbm,
}

/// How far an instance may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Of a newer version than this one; not to be used.
    Unspecified,
    /// Registered, not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// Finishing what it has; takes nothing new.
    Draining,
    /// In doubt: kept, ranked last, probed.
    Suspect,
}

/// BLAKE3-256 of a card or an artifact; prints as hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One incarnation of a process, as registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Random, never 0, new per incarnation.
    pub id: InstanceId,
    /// Deployments that do not see each other.
    pub namespace: String,
    /// What it is.
    pub component: Component,
    /// Addresses by name: `grpc`, of workers also `kv` and `shm`, `admin`. Not all are dialled as
    /// [`Address`], so they stay text.
    pub addresses: BTreeMap<String, String>,
    /// Its model card, for components that have one.
    pub card: Option<Digest>,
    /// How far it may be relied on.
    pub status: Status,
    /// Grows whenever the lease is opened anew; the highest is the truth.
    pub lease_epoch: u64,
    /// For constraints.
    pub labels: BTreeMap<String, String>,
    /// Boot id of its host: equal ids may share memory.
    pub boot_id: String,
}

impl Instance {
    /// An instance that is starting, with its gRPC address and nothing else yet.
    pub fn starting(id: InstanceId, namespace: &str, component: Component, grpc: &Address) -> Self {
        Self {
            id,
            namespace: namespace.to_owned(),
            component,
            addresses: BTreeMap::from([("grpc".to_owned(), grpc.to_string())]),
            card: None,
            status: Status::Starting,
            lease_epoch: 0,
            labels: BTreeMap::new(),
            boot_id: String::new(),
        }
    }

    /// Where its gRPC services are; `None` if it named none or one that cannot be read.
    pub fn grpc(&self) -> Option<Address> {
        self.addresses.get("grpc")?.parse().ok()
    }
}

impl From<&Instance> for proto::Instance {
    fn from(instance: &Instance) -> Self {
        let pairs = |map: &BTreeMap<String, String>| map.clone().into_iter().collect();
        Self {
            instance_id: instance.id.0,
            namespace: instance.namespace.clone(),
            component: proto::Component::from(instance.component).into(),
            addresses: pairs(&instance.addresses),
            card_digest: instance.card.map(|Digest(bytes)| bytes.to_vec().into()).unwrap_or_default(),
            status: proto::InstanceStatus::from(instance.status).into(),
            lease_epoch: instance.lease_epoch,
            labels: pairs(&instance.labels),
            boot_id: instance.boot_id.clone(),
        }
    }
}

impl From<proto::Instance> for Instance {
    fn from(wire: proto::Instance) -> Self {
        Self {
            id: InstanceId(wire.instance_id),
            component: wire.component().into(),
            status: wire.status().into(),
            namespace: wire.namespace,
            addresses: wire.addresses.into_iter().collect(),
            card: <[u8; 32]>::try_from(wire.card_digest.as_ref()).ok().map(Digest),
            lease_epoch: wire.lease_epoch,
            labels: wire.labels.into_iter().collect(),
            boot_id: wire.boot_id,
        }
    }
}

macro_rules! same_names {
    ($ours:ident, $theirs:ident: $($name:ident),*) => {
        impl From<$ours> for proto::$theirs {
            fn from(ours: $ours) -> Self {
                match ours { $($ours::$name => Self::$name),* }
            }
        }
        impl From<proto::$theirs> for $ours {
            fn from(theirs: proto::$theirs) -> Self {
                match theirs { $(proto::$theirs::$name => Self::$name),* }
            }
        }
    };
}

same_names!(Component, Component: Unspecified, Worker, Router, Frontend, Planner, Kvbm);
same_names!(Status, InstanceStatus: Unspecified, Starting, Ready, Draining, Suspect);
