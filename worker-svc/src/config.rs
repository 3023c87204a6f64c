//! Configuration of the worker. `config/default.toml` explains every key.

use std::path::PathBuf;
use std::time::Duration;

use armature_kv_redis::KvEventsConfig;
use armature_svc_kit::address::Address;
use armature_svc_kit::config::ConfigError;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::telemetry::TelemetryConfig;
use serde::{Deserialize, Serialize};

use crate::adapters::openai::{EngineUrl, Settings, Watch};
use crate::domain::openai::dialect::Dialect;
use crate::domain::prefix_cache;
use crate::engine::sim::SimConfig;
use crate::faults::FaultPoint;
use crate::identity::Role;

/// Which engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A Llama-family GGUF on the CPU.
    Llama,
    /// A timing model over the same scheduler and pool.
    Sim,
    /// Any server that speaks OpenAI's API; its kind is what it calls itself.
    OpenAi,
    /// vLLM's server.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
}

impl EngineKind {
    /// Whether it is an engine of somebody else, behind `openai.url`.
    pub fn is_external(self) -> bool {
        matches!(self, Self::OpenAi | Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// The kind of an external engine; none: as it calls itself.
    pub fn dialect(self) -> Option<Dialect> {
        match self {
            Self::Vllm => Some(Dialect::Vllm),
            Self::Sglang => Some(Dialect::Sglang),
            Self::LlamaCpp => Some(Dialect::LlamaCpp),
            Self::OpenAi | Self::Llama | Self::Sim => None,
        }
    }
}

/// An engine of somebody else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenAiSettings {
    /// Where it is: `http[s]://host:port`, with or without `/v1`.
    pub url: String,
    /// Key that it wants, sent as a bearer token.
    pub api_key: Option<Secret>,
    /// Which of its models; empty: the only one.
    pub model: String,
    /// Its tokenizer: a GGUF file, a `tokenizer.json`, or a folder that has one.
    pub tokenizer: Option<PathBuf>,
    /// Its chat template: Jinja, or a `tokenizer_config.json`.
    pub template: Option<PathBuf>,
    /// Longest sequence in tokens; 0: as it says.
    pub context_length: usize,
    /// How long it may take to answer for the first time, in seconds.
    pub start_seconds: f64,
    /// Between two looks at its health and load, in seconds.
    pub watch_seconds: f64,
    /// Longest wait for an answer to such a look, in seconds; two in a row, and it is taken for hanging.
    pub patience_seconds: f64,
}

impl Default for OpenAiSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            api_key: None,
            model: String::new(),
            tokenizer: None,
            template: None,
            context_length: 0,
            start_seconds: 600.0,
            watch_seconds: 1.0,
            patience_seconds: 5.0,
        }
    }
}

/// How KV may land here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Read from a read-only mapping of the prefill worker's pool, on one host.
    Shm,
    /// Sent by the prefill worker over a connection.
    Tcp,
}

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Deployment; workers of different namespaces do not see each other.
    pub namespace: String,
    /// What this worker does with requests.
    pub role: Role,
    /// Which engine runs.
    pub engine: EngineKind,
    /// Name under which the model is served; empty: as its file says.
    pub served_name: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// GGUF file, for `llama`.
    pub model: Option<PathBuf>,
    /// Folder for quantised weights that processes share; none: they are made at each start.
    pub cache_dir: Option<PathBuf>,
    /// Threads of the engine.
    pub threads: usize,
    /// Tokens per KV block, for `llama`.
    pub block_size: usize,
    /// Blocks of the KV pool.
    pub kv_blocks: usize,
    /// Address of the gRPC service.
    pub listen: Address,
    /// Address of the KV data listener.
    pub kv_listen: Address,
    /// Address of the admin HTTP server, if any.
    pub admin: Option<Address>,
    /// Host under which others reach this worker; empty: the bound one.
    pub advertise_host: String,
    /// Discovery endpoints; all are tried.
    pub discovery: Vec<Address>,
    /// Transports for landing KV, in order of preference.
    pub transports: Vec<Transport>,
    /// Folder of the Unix sockets through which workers of one host share their pools.
    pub shm_dir: PathBuf,
    /// Free labels, for constraints.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Token that every call between services must carry.
    pub token: Option<Secret>,
    /// Bounds and targets of the scheduler.
    pub scheduler: SchedulerSettings,
    /// Time limits of hand-offs.
    pub handoff: HandoffSettings,
    /// How long a drain may take before unfinished requests migrate, in seconds.
    pub drain_seconds: f64,
    /// How KV events travel to routers.
    pub kv_events: KvEventsConfig,
    /// The engine of somebody else that `openai`, `vllm`, `sglang` and `llamacpp` name.
    pub openai: OpenAiSettings,
    /// The simulated engine.
    pub sim: SimConfig,
    /// Fills blocks with NaN before they are first written, so that a read of what is not there shows.
    pub poison_blocks: bool,
    /// Holds this process for ever at a phase of a hand-off; for fault tests.
    pub fault_point: Option<FaultPoint>,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

/// Which cached block goes first when a block is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The oldest; a block that was hit at least once counts as half as old.
    TwoSegment,
    /// The oldest.
    Lru,
}

impl From<Eviction> for prefix_cache::Eviction {
    fn from(eviction: Eviction) -> Self {
        match eviction {
            Eviction::TwoSegment => Self::TwoSegment,
            Eviction::Lru => Self::Lru,
        }
    }
}

/// Bounds and targets of the scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerSettings {
    /// Most sequences at once.
    pub max_running: usize,
    /// Most new requests waiting; the next is refused. As many migrated ones may wait as may run.
    pub max_waiting: usize,
    /// After so many migrated sequences in a row a new request is admitted, if one waits.
    pub migrated_in_a_row: usize,
    /// Most tokens in one step.
    pub max_batched_tokens: usize,
    /// Time that a step with prefill in it should take, in milliseconds.
    pub step_target_ms: f64,
    /// Which cached block goes first when a block is needed.
    pub eviction: Eviction,
    /// Part of the pool that prompts computed for nobody yet may hold.
    pub source_fraction: f64,
    /// Part of the pool that may be granted to transfers and not yet landed.
    pub grant_fraction: f64,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            max_running: 256,
            max_waiting: 256,
            migrated_in_a_row: 4,
            max_batched_tokens: 8192,
            step_target_ms: 100.0,
            eviction: Eviction::TwoSegment,
            source_fraction: 0.5,
            grant_fraction: 0.25,
        }
    }
}

/// Time limits of hand-offs, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HandoffSettings {
    /// Longest wait for a prefill worker's first answer.
    pub accept_seconds: f64,
    /// Longest silence of a transfer.
    pub progress_seconds: f64,
    /// Longest life of a transfer.
    pub hold_seconds: f64,
}

impl Default for HandoffSettings {
    fn default() -> Self {
        Self { accept_seconds: 5.0, progress_seconds: 60.0, hold_seconds: 600.0 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "default".into(),
            role: Role::Aggregated,
            engine: EngineKind::Llama,
            served_name: String::new(),
            aliases: Vec::new(),
            model: None,
            cache_dir: None,
            threads: 1,
            block_size: 16,
            kv_blocks: 1024,
            listen: Address::tcp("127.0.0.1", 7500),
            kv_listen: Address::tcp("127.0.0.1", 7501),
            admin: Some(Address::tcp("127.0.0.1", 7510)),
            advertise_host: String::new(),
            discovery: vec![Address::tcp("127.0.0.1", 7100)],
            transports: vec![Transport::Shm, Transport::Tcp],
            shm_dir: "/tmp/armature-shm".into(),
            labels: Default::default(),
            token: None,
            scheduler: SchedulerSettings::default(),
            handoff: HandoffSettings::default(),
            drain_seconds: 30.0,
            kv_events: KvEventsConfig::default(),
            openai: OpenAiSettings::default(),
            sim: SimConfig::default(),
            poison_blocks: false,
            fault_point: None,
            telemetry: TelemetryConfig::default(),
        }
    }
}

/// The configuration, checked and typed.
#[derive(Debug, Clone)]
pub struct Validated {
    /// As it was given.
    pub config: Config,
    /// Longest drain before requests migrate.
    pub drain: Duration,
    /// Time limits of hand-offs.
    pub handoff: crate::worker::HandoffLimits,
    /// The Redis that KV events are published to, if any.
    pub redis: Option<armature_kv_redis::Options>,
    /// The engine of somebody else, if it is one.
    pub external: Option<External>,
}

/// An engine of somebody else: where it is, and what is known of it.
#[derive(Debug, Clone)]
pub struct External {
    /// Where.
    pub url: EngineUrl,
    /// What is not asked of it.
    pub settings: Settings,
    /// How it is watched.
    pub watch: Watch,
}

impl Config {
    /// Checks what can be checked without touching anything.
    ///
    /// # Errors
    /// The first key that is wrong, and what it must be.
    pub fn validate(self) -> Result<Validated, ConfigError> {
        let invalid = |key: &str, problem: String| Err(ConfigError::invalid(key, problem));
        if self.engine == EngineKind::Llama && self.model.is_none() {
            return invalid("model", "is missing: name a GGUF file, or set engine = \"sim\"".into());
        }
        if self.engine.is_external() && self.role != Role::Aggregated {
            return invalid(
                "role",
                "must be aggregated: the KV of an engine of somebody else cannot be moved".into(),
            );
        }
        for (key, value, least) in [
            ("threads", self.threads, 1),
            ("block_size", self.block_size, 1),
            ("kv_blocks", self.kv_blocks, 4),
            ("scheduler.max_running", self.scheduler.max_running, 1),
            ("scheduler.max_waiting", self.scheduler.max_waiting, 1),
            ("scheduler.max_batched_tokens", self.scheduler.max_batched_tokens, 1),
        ] {
            if value < least {
                return invalid(key, format!("{value} is below the minimum of {least}"));
            }
        }
        for (key, value) in [
            ("scheduler.source_fraction", self.scheduler.source_fraction),
            ("scheduler.grant_fraction", self.scheduler.grant_fraction),
        ] {
            if !(value > 0.0 && value <= 1.0) {
                return invalid(key, format!("{value} is not above 0 and at most 1"));
            }
        }
        if self.transports.is_empty() {
            return invalid("transports", "is empty: \"tcp\" works everywhere".into());
        }
        if matches!(self.kv_listen, Address::Mem(_)) {
            return invalid("kv_listen", "must be host:port: KV moves over TCP".into());
        }
        if self.discovery.is_empty() {
            return invalid("discovery", "is empty: name at least one endpoint".into());
        }
        if self.engine == EngineKind::Sim
            && let Err(error) = self.sim.validate()
        {
            return invalid("sim", error.to_string());
        }
        let seconds = |key: &str, value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| ConfigError::invalid(key, format!("{value} is not a time in seconds")))
        };
        let external = self.engine.is_external().then(|| self.external(seconds)).transpose()?;
        Ok(Validated {
            external,
            redis: self.kv_events.redis.validate()?,
            drain: seconds("drain_seconds", self.drain_seconds)?,
            handoff: crate::worker::HandoffLimits {
                accept: seconds("handoff.accept_seconds", self.handoff.accept_seconds)?,
                progress: seconds("handoff.progress_seconds", self.handoff.progress_seconds)?,
                hold: seconds("handoff.hold_seconds", self.handoff.hold_seconds)?,
            },
            config: self,
        })
    }
}

impl Config {
    fn external(
        &self,
        seconds: impl Fn(&str, f64) -> Result<Duration, ConfigError>,
    ) -> Result<External, ConfigError> {
        let settings = &self.openai;
        let url = settings.url.parse().map_err(|error: crate::adapters::openai::BadUrl| {
            ConfigError::invalid("openai.url", error.to_string())
        })?;
        let watch = Watch {
            interval: seconds("openai.watch_seconds", settings.watch_seconds)?,
            patience: seconds("openai.patience_seconds", settings.patience_seconds)?,
        };
        if watch.interval.is_zero() || watch.patience.is_zero() {
            let problem = "must be above 0, and openai.patience_seconds as well".to_owned();
            return Err(ConfigError::invalid("openai.watch_seconds", problem));
        }
        Ok(External {
            url,
            settings: Settings {
                dialect: self.engine.dialect(),
                model: Some(settings.model.clone()).filter(|model| !model.is_empty()),
                tokenizer: settings.tokenizer.clone(),
                template: settings.template.clone(),
                context_length: Some(settings.context_length).filter(|tokens| *tokens > 0),
                start: seconds("openai.start_seconds", settings.start_seconds)?,
            },
            watch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_file_says_the_defaults() {
        let text = include_str!("../config/default.toml");
        let sample: Config = armature_svc_kit::config::parse_toml(text).unwrap();
        assert_eq!(sample, Config::default());
        // Complete: every key is written, those that have no default as a comment.
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        assert_eq!(text.parse::<toml::Table>().unwrap(), defaults);
        for unset in [
            "model",
            "cache_dir",
            "token",
            "fault_point",
            "otlp_endpoint",
            "password",
            "ca_file",
            "cert_file",
            "key_file",
            "api_key",
            "tokenizer",
            "template",
        ] {
            assert!(text.contains(&format!("# {unset} = ")), "{unset}");
        }
    }

    #[test]
    fn what_cannot_work_is_named_by_its_key() {
        let llama = Config::default().validate().unwrap_err().to_string();
        assert!(llama.contains("model") && llama.contains("sim"), "{llama}");
        let sim = Config { engine: EngineKind::Sim, ..Config::default() };
        assert!(sim.clone().validate().is_ok());
        let few = Config { kv_blocks: 0, ..sim.clone() }.validate().unwrap_err().to_string();
        assert!(few.contains("kv_blocks"), "{few}");
        let nowhere = Config { engine: EngineKind::Vllm, ..Config::default() };
        let url = nowhere.clone().validate().unwrap_err().to_string();
        assert!(url.contains("openai.url") && url.contains("http://host:port"), "{url}");
        let mut decode = nowhere;
        (decode.role, decode.openai.url) = (Role::Decode, "http://gpu1:8000/v1".into());
        assert!(decode.clone().validate().unwrap_err().to_string().contains("role"));
        decode.role = Role::Aggregated;
        assert_eq!(decode.validate().unwrap().external.unwrap().url.to_string(), "http://gpu1:8000");
        let mut nan = sim;
        nan.scheduler.grant_fraction = f64::NAN;
        assert!(nan.validate().unwrap_err().to_string().contains("grant_fraction"));
    }
}
