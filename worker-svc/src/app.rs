//! Puts the worker together: engine, listeners, registration, drain.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::FILE_DESCRIPTOR_SET;
use armature_contracts::ids::InstanceId;
use armature_contracts::worker::v1::worker_service_server::WorkerServiceServer;
use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::{BindError, Network};
use armature_svc_kit::server::{Server, ServerOptions};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::card;
use crate::config::{Transport, Validated};
use crate::domain::scheduler::SchedulerConfig;
use crate::driver::Driver;
use crate::engine::llama::WeightStore;
use crate::engine::{self, EngineStartError, Loaded};
use crate::faults::FaultPoints;
use crate::grpc::WorkerGrpc;
use crate::identity::Identity;
use crate::kv_memory::KvMemory;
use crate::metrics::{EngineState, Metrics};
use crate::transfer::{BootId, HostLanding, HostSource, Incarnation, LandingOptions, SourceOptions, TcpLanding};
use crate::worker::{PrefillUsed, Worker};

/// What the worker is given.
#[derive(Debug)]
pub struct Parts {
    /// Binds and connects.
    pub network: Network,
    /// Weights that workers of one process share.
    pub weights: Arc<WeightStore>,
    /// The shutdown.
    pub drain: Drain,
}

/// Why the worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineStartError),
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Something the system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The service token cannot be sent.
    #[error(transparent)]
    Token(#[from] armature_svc_kit::channel::TokenError),
}

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> StartError {
    let what = what.into();
    |source| StartError::System { what, source }
}
