//! Instances as the frontend sees them.

use std::collections::BTreeMap;

use armature_contracts::ids::InstanceId;

use super::digest::Digest;

/// What an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Serves a model.
    Worker,
    /// Decides which worker.
    Router,
    /// Neither: of no interest here.
    Other,
}

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Registered, not yet serving.
    Starting,
    /// Serves.
    Ready,
    /// Takes no new work.
    Draining,
    /// In doubt: used when nobody better is there.
    Suspect,
}

/// An instance of a worker or a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which incarnation.
    pub id: InstanceId,
    /// What it is.
    pub kind: Kind,
    /// Where it is in its life.
    pub status: Status,
    /// Its gRPC address, as text.
    pub address: String,
    /// HTTP address of the engine behind a worker that registers one (`http`); none of engines that only their worker talks to.
    pub http: Option<String>,
    /// Of its card; empty without one.
    pub card: Digest,
}

/// Every instance known, by id.
pub type Members = BTreeMap<InstanceId, Member>;
