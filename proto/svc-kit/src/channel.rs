//! Client channels: what a generated client is made of, with deadlines, identity and limits
//! already in.
//!
//! `WorkerServiceClient::new(channels.to(&address))` connects lazily over the [`Network`]; a broken
//! connection is made again by the next call, at most as often as the back-off allows. A peer that
//! is gone shows as UNAVAILABLE; one that hangs is noticed by HTTP/2 pings. The message limits are
//! set by [`crate::limited!`], for tonic keeps them in the generated client.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Uri};
use hyper_util::rt::TokioIo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tonic::transport::{Channel as Transport, Endpoint};
use tower::Service;

use crate::address::Address;
use crate::call::Call;
use crate::layers::deadline;
use crate::network::{Connection, Network};
use crate::secret::Secret;

/// Limit of one gRPC message in either direction, for clients and servers alike.
pub use armature_contracts::MAX_MESSAGE_BYTES;

/// Flow-control window of one stream: what a reader that has stopped may hold back. A large message
/// should not wait for a window every 64 KiB.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Flow-control window of a connection: enough that slow readers do not stop the others. Half of it
/// is also h2's budget for the overhead of small unread frames (about 200 bytes for a token), beyond
/// which it ends the connection; this allows for some 150,000 unread tokens.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024 * 1024;
/// Cancelled streams that h2 remembers: none. It charges late messages of remembered ones to a
/// budget of the connection and never pays back; those of forgotten ones are answered by a reset and
/// counted as errors, which by default end the connection, and every stream on it, at the 1024th of
/// its life. Peers are our own, so that count has no limit here.
const REMEMBERED_RESETS: usize = 0;
/// First pause after a failed attempt to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause: how late a restarted peer may be noticed.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Sets the message limits of a generated client or server to
/// [`MAX_MESSAGE_BYTES`](crate::channel::MAX_MESSAGE_BYTES).
#[macro_export]
macro_rules! limited {
    ($stub:expr) => {
        $stub
            .max_decoding_message_size($crate::channel::MAX_MESSAGE_BYTES)
            .max_encoding_message_size($crate::channel::MAX_MESSAGE_BYTES)
    };
}

/// How a peer that hangs is noticed: a ping every `interval`, the connection is dead when one is
/// not answered within `timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// Time between pings, also on an idle connection.
    pub interval: Duration,
    /// Time for the answer.
    pub timeout: Duration,
}

impl KeepAlive {
    /// 5 s + 5 s: for streams whose loss is expensive.
    pub const PATIENT: Self = Self { interval: Duration::from_secs(5), timeout: Duration::from_secs(5) };
    /// 1 s + 1 s: where another peer can answer at once.
    pub const EAGER: Self = Self { interval: Duration::from_secs(1), timeout: Duration::from_secs(1) };
}

/// What all channels of a service have in common.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// Service token sent with every call.
    pub token: Option<Secret>,
    /// Limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// Channels kept for reuse; beyond it the one unused for longest is forgotten.
    pub cached: usize,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self { token: None, connect_timeout: Duration::from_secs(2), cached: 1024 }
    }
}

/// Makes channels and keeps a bounded number of them by address. Cheap to clone; clones share.
#[derive(Clone, Debug)]
pub struct Channels {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    network: Network,
    connect_timeout: Duration,
    authorization: Option<HeaderValue>,
    cached: usize,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    uses: u64,
    channels: HashMap<(Address, KeepAlive), (Channel, u64)>,
}

/// The service token cannot travel as metadata.
#[derive(Debug, thiserror::Error)]
#[error("the service token holds characters that metadata cannot carry: use visible ASCII")]
pub struct TokenError;

impl Channels {
    /// Channels over `network`.
    pub fn new(network: Network, options: ChannelOptions) -> Result<Self, TokenError> {
        let authorization = options.token.as_ref().map(bearer).transpose()?;
        let shared = Shared {
            network,
            connect_timeout: options.connect_timeout,
            authorization,
            cached: options.cached.max(1),
            cache: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The channel to `address` with [`KeepAlive::PATIENT`]. Connects when first used; needs a
    /// tokio runtime.
    pub fn to(&self, address: &Address) -> Channel {
        self.with_keep_alive(address, KeepAlive::PATIENT)
    }

    /// The channel to `address` that notices a hanging peer as fast as `keep_alive` says.
    pub fn with_keep_alive(&self, address: &Address, keep_alive: KeepAlive) -> Channel {
        let mut cache = self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.uses += 1;
        let now = cache.uses;
        let key = (address.clone(), keep_alive);
        if let Some((channel, used)) = cache.channels.get_mut(&key) {
            *used = now;
            return channel.clone();
        }
        if cache.channels.len() >= self.shared.cached {
            let oldest = cache.channels.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.and_then(|key| cache.channels.remove(&key));
        }
        let channel = self.shared.open(address, keep_alive);
        cache.channels.insert(key, (channel.clone(), now));
        channel
    }

    /// Lets the next user of [`Channels::to`] make a connection of its own, perhaps to another of the addresses that a name has. Calls on
    /// the one before go on.
    pub fn forget(&self, address: &Address) {
        let mut cache = self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.channels.remove(&(address.clone(), KeepAlive::PATIENT));
    }

    /// Channels kept now.
    pub fn cached(&self) -> usize {
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner).channels.len()
    }

    /// Shows how many channels are kept, and how many may be: `grpc_channels`, `grpc_max_channels`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// The network these channels use.
    pub fn network(&self) -> &Network {
        &self.shared.network
    }
}

impl Collector for Channels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name, help, value: usize| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)
        };
        gauge("grpc_channels", "Channels kept for reuse", self.cached())?;
        gauge("grpc_max_channels", "Limit of channels kept for reuse", self.shared.cached)
    }
}

fn bearer(token: &Secret) -> Result<HeaderValue, TokenError> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose())).map_err(|_| TokenError)?;
    value.set_sensitive(true);
    Ok(value)
}

impl Shared {
    fn open(&self, address: &Address, keep_alive: KeepAlive) -> Channel {
        let authority = match address {
            Address::Mem(_) => "mem".to_owned(),
            tcp => tcp.to_string(),
        };
        // The connector dials `address` itself; the uri only fills the :authority of requests.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .unwrap_or_else(|_| Endpoint::from_static("http://peer"))
            .http2_keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_max_concurrent_reset_streams(REMEMBERED_RESETS)
            .http2_max_local_error_reset_streams(None);
        let connector = Connector {
            network: self.network.clone(),
            address: address.clone(),
            timeout: self.connect_timeout,
            pacing: Arc::default(),
        };
        let transport = endpoint.connect_with_connector_lazy(connector);
        Channel { transport, authorization: self.authorization.clone() }
    }
}

/// A channel to one address; cloning it is cheap and shares the connection.
#[derive(Clone, Debug)]
pub struct Channel {
    transport: Transport,
    authorization: Option<HeaderValue>,
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.transport.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let now = Instant::now();
        let call = request.extensions().get::<Call>().cloned().or_else(Call::current).unwrap_or_default();
        call.write_headers(request.headers_mut(), now);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        let deadline = Call::from_headers(request.headers(), now).deadline;
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Box::pin(ready(Ok(deadline::exceeded().into_http())));
        }
        let answer = self.transport.call(request);
        Box::pin(async move {
            let Some(deadline) = deadline else { return answer.await };
            match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(answer)) => Ok(answer.map(|body| deadline::until(deadline, body, None))),
                // The transport has a timer on the same header and would call this CANCELLED.
                Ok(Err(error)) if Instant::now() < deadline => Err(error),
                Ok(Err(_)) | Err(_) => Ok(deadline::exceeded().into_http()),
            }
        })
    }
}

/// Dials one address, no more often than the back-off allows: in between it repeats the last
/// failure at once, so that callers can go elsewhere.
#[derive(Clone, Debug)]
struct Connector {
    network: Network,
    address: Address,
    timeout: Duration,
    pacing: Arc<Mutex<Pacing>>,
}

#[derive(Debug)]
struct Pacing {
    backoff: ExponentialBackoff,
    /// Until when, and why.
    refuse: Option<(Instant, io::ErrorKind, String)>,
}

impl Default for Pacing {
    fn default() -> Self {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(BACKOFF_MIN)
            .with_max_delay(BACKOFF_MAX)
            .without_max_times()
            .with_jitter();
        Self { backoff: pauses.build(), refuse: None }
    }
}

impl Connector {
    async fn dial(self) -> io::Result<TokioIo<Connection>> {
        if let Some(error) = self.refusal(Instant::now()) {
            return Err(error);
        }
        let dialled = timeout(self.timeout, self.network.connect(&self.address)).await;
        let result = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut pacing = self.pacing.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(connection) => {
                *pacing = Pacing::default();
                Ok(TokioIo::new(connection))
            }
            Err(error) => {
                // backon adds up to one whole delay of jitter, so the bound is applied again.
                let pause = pacing.backoff.next().unwrap_or(BACKOFF_MAX).min(BACKOFF_MAX);
                let told = format!("cannot connect to {}: {error}", self.address);
                pacing.refuse = Some((Instant::now() + pause, error.kind(), told.clone()));
                Err(io::Error::new(error.kind(), told))
            }
        }
    }

    fn refusal(&self, now: Instant) -> Option<io::Error> {
        let pacing = self.pacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, kind, told) = pacing.refuse.as_ref()?;
        (now < *until).then(|| io::Error::new(*kind, told.clone()))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}
