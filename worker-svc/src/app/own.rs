//! A worker whose engine runs in this process: pool, scheduler, data plane.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::discovery_client::ModelCardBytes;
use armature_svc_kit::network::Network;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio_util::task::TaskTracker;

use super::{Base, Engine, StartError, advertised, system};
use crate::card;
use crate::config::{Config, Transport, Validated};
use crate::domain::scheduler::SchedulerConfig;
use crate::driver::Driver;
use crate::engine::llama::WeightStore;
use crate::engine::{self, Loaded};
use crate::faults::FaultPoints;
use crate::identity::Identity;
use crate::kv_memory::KvMemory;
use crate::transfer::{
    BootId, HostLanding, HostSource, Incarnation, LandingOptions, ShmExport, ShmLanding, SourceOptions,
    TcpLanding,
};
use crate::worker::{PrefillUsed, Worker};

/// Loads the engine and starts its thread.
pub(super) async fn engine(
    base: &Base<'_>,
    weights: Arc<WeightStore>,
    registry: &mut Registry,
) -> Result<Engine, StartError> {
    let config = &base.validated.config;
    let Loaded { engine, tokenizer, template } = load(config.clone(), weights).await?;
    let identity = Identity::new(engine.spec().clone());
    let kv = KvMemory::new(identity.spec.kv, config.kv_blocks).map_err(system("cannot make the KV pool"))?;
    let kv = Arc::new(kv);
    let scheduler = scheduler(config, &identity);
    let max_ended = scheduler.max_ended;
    let (driver, thread) =
        Driver::start(engine, Arc::clone(&kv), scheduler, config.poison_blocks, base.first)
            .map_err(system("cannot start the engine's thread"))?;
    let publishing = base.publishing(&driver, &identity, registry)?;
    let Endpoints { landing, source, kv_address } =
        endpoints(base.network, base.validated, base.first, &kv).await?;
    let worker = Worker {
        identity: identity.clone(),
        driver: Arc::clone(&driver),
        landing: Box::new(landing),
        source: Box::new(source),
        channels: base.channels.clone(),
        drain: base.drain.clone(),
        tasks: TaskTracker::new(),
        metrics: base.metrics.clone(),
        faults: FaultPoints(config.fault_point),
        limits: base.validated.handoff,
        prefill_used: PrefillUsed::new(max_ended),
    };
    let card = ModelCardBytes {
        card: card::card(config, &identity, &tokenizer, &template).encode_to_vec().into(),
        artifacts: vec![tokenizer.into(), template.into()],
    };
    Ok(Engine {
        identity,
        backend: driver,
        own: Some(Arc::new(worker)),
        card,
        kv_address,
        publishing,
        external: None,
        thread: Some(thread),
    })
}

/// Both ends of the data plane.
struct Endpoints {
    landing: HostLanding,
    source: HostSource,
    /// `host:port` of the KV data listener.
    kv_address: Option<String>,
}

/// Where KV lands and leaves, on the transports that are configured.
async fn endpoints(
    network: &Network,
    validated: &Validated,
    first: InstanceId,
    kv: &Arc<KvMemory>,
) -> Result<Endpoints, StartError> {
    let Config { transports, shm_dir, .. } = &validated.config;
    let tcp = match transports.contains(&Transport::Tcp) {
        true => Some(tcp_landing(network, &validated.config).await?),
        false => None,
    };
    let kv_address = tcp.as_ref().map(|tcp| tcp.advertised.clone());
    let shm = transports.contains(&Transport::Shm);
    if shm {
        std::fs::create_dir_all(shm_dir)
            .map_err(system(format!("shm_dir: cannot make the folder {}", shm_dir.display())))?;
    }
    let boot_id = BootId::of_this_host().map_err(system("cannot read the boot id"))?;
    let landing = HostLanding::start(
        Arc::clone(kv),
        LandingOptions::default(),
        tcp,
        shm.then(|| ShmLanding { directory: shm_dir.clone(), boot_id: boot_id.clone() }),
    );
    let export =
        shm.then(|| ShmExport { directory: shm_dir.clone(), boot_id, incarnation: Incarnation(first.0) });
    let source = HostSource::start(Arc::clone(kv), SourceOptions::default(), export)
        .map_err(system(format!("shm_dir: cannot listen in {}", shm_dir.display())))?;
    Ok(Endpoints { landing, source, kv_address })
}

async fn tcp_landing(network: &Network, config: &Config) -> Result<TcpLanding, StartError> {
    let listener = network.bind_sockets(&config.kv_listen).await?;
    let bound: Address = listener.local_addr().map_err(system("kv_listen"))?.into();
    Ok(TcpLanding { listener, advertised: advertised(config, &bound).await.to_string() })
}

async fn load(config: Config, weights: Arc<WeightStore>) -> Result<Loaded, StartError> {
    let joined = tokio::task::spawn_blocking(move || engine::load(&config, &weights)).await;
    Ok(joined.expect("loading does not panic")?)
}

fn scheduler(config: &Config, me: &Identity) -> SchedulerConfig {
    let settings = &config.scheduler;
    let mut scheduler = SchedulerConfig::new(config.kv_blocks, me.block_size(), me.spec.context_length);
    scheduler.max_running = settings.max_running;
    scheduler.max_waiting = settings.max_waiting;
    scheduler.migrated_in_a_row = settings.migrated_in_a_row;
    scheduler.max_batched_tokens = settings.max_batched_tokens;
    scheduler.eviction = settings.eviction.into();
    scheduler.source_fraction = settings.source_fraction;
    scheduler.grant_fraction = settings.grant_fraction;
    scheduler.step.target = Duration::from_secs_f64(settings.step_target_ms / 1e3);
    scheduler
}
