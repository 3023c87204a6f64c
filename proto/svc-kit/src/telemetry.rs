//! Logs and traces of a process: set up once, flushed at the end.
//!
//! Metrics need no set-up: a `prometheus_client::registry::Registry` is made by the composition
//! root, passed to what registers instruments, and given to [`crate::admin::Admin`].

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Configuration of logs and traces; part of every service's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, in `RUST_LOG` syntax; the variable `RUST_LOG` wins when it is set.
    pub log_level: String,
    /// Where traces are sent by OTLP over gRPC, for instance `http://collector:4317`; unset means
    /// nowhere.
    pub otlp_endpoint: Option<String>,
    /// Share of traces begun here that are recorded, 0 to 1; a caller's own decision is kept.
    pub trace_sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            otlp_endpoint: None,
            trace_sample_ratio: 1.0,
        }
    }
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be parsed.
    #[error("log_level `{filter}` is not a log filter")]
    Filter {
        /// The filter.
        filter: String,
        /// Where it is wrong.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The exporter refuses its configuration.
    #[error("cannot export traces to {endpoint}")]
    Exporter {
        /// The configured endpoint.
        endpoint: String,
        /// Why.
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// The process has a subscriber already; one process sets up telemetry once.
    #[error("telemetry is already set up in this process")]
    AlreadySet,
}

/// The telemetry of this process; flushes when shut down or dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the export of traces"]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sets up logs (to standard error) and traces for the whole process. Call it inside a tokio
    /// runtime when `otlp_endpoint` is set.
    pub fn start(config: &TelemetryConfig, service: &str) -> Result<Self, TelemetryError> {
        let filter = match std::env::var("RUST_LOG") {
            Ok(filter) if !filter.is_empty() => filter,
            _ => config.log_level.clone(),
        };
        let filter = EnvFilter::builder()
            .parse(&filter)
            .map_err(|source| TelemetryError::Filter { filter, source })?;
        let traces = config.otlp_endpoint.as_deref().map(|it| provider(it, service, config)).transpose()?;
        let export = traces
            .as_ref()
            .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("armature")));
        // What is logged does not decide what is traced.
        tracing_subscriber::registry()
            .with(lines(config.log_format).with_filter(filter))
            .with(export.with_filter(LevelFilter::INFO))
            .try_init()
            .map_err(|_| TelemetryError::AlreadySet)?;
        std::panic::set_hook(Box::new(log_panic));
        Ok(Self { traces })
    }

    /// Sends what is still unsent; waits for the exporter's own timeout at most.
    pub fn shutdown(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        if let Some(traces) = self.traces.take()
            && let Err(error) = traces.shutdown()
        {
            tracing::warn!(%error, "some traces were not exported");
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Where it panicked, inside the span it panicked in. The text only at DEBUG: messages of string
/// operations quote their operand, which may be a piece of a request.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(location, "panicked, the text is logged at debug");
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::debug!(location, text = text.unwrap_or("not text"), "panic text");
}

fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

fn provider(
    endpoint: &str,
    service: &str,
    config: &TelemetryConfig,
) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TelemetryError::Exporter { endpoint: endpoint.to_owned(), source })?;
    let ratio = Sampler::TraceIdRatioBased(config.trace_sample_ratio);
    let resource = Resource::builder().with_service_name(format!("armature-{service}")).build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(ratio)))
        .with_resource(resource)
        .build())
}
