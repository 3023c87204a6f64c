//! Connections to a real Redis: one server, or a cluster.

use std::sync::Once;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, Value, cmd};
use tokio::time::timeout;

use crate::command::{Command, ConnectError, Connector, Lost, Notices, Reply, Store};
use crate::config::Options;
use crate::fitness::judge;
use crate::reply;

/// Time for a connection, its login and its check.
const CONNECT: Duration = Duration::from_secs(2);
/// Time for an answer. It is as long as a large chunk takes over a slow network, and short against the second that a reader may be behind.
const ANSWER: Duration = Duration::from_secs(1);
/// How often a connection that only listens is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

/// A Redis to connect to.
#[derive(Clone)]
pub struct Redis {
    servers: Vec<Client>,
    cluster: Option<ClusterClient>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Redis {
    /// From checked options; connects to nothing yet.
    ///
    /// # Errors
    /// TLS files that cannot be used, as text.
    pub fn new(options: Options) -> Result<Self, String> {
        let Options { nodes, tls, cluster } = options;
        // The one TLS implementation of the process, where nobody has chosen another.
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| _ = rustls::crypto::ring::default_provider().install_default());
        let text = |error: RedisError| error.to_string();
        let server = |node: &redis::ConnectionInfo| match &tls {
            Some(files) => Client::build_with_tls(node.clone(), files.clone()),
            None => Client::open(node.clone()),
        };
        let servers = nodes.iter().map(server).collect::<Result<_, _>>().map_err(text)?;
        let cluster = match cluster {
            false => None,
            true => {
                let mut builder = ClusterClient::builder(nodes)
                    .connection_timeout(CONNECT)
                    .response_timeout(ANSWER)
                    .overall_response_timeout(Some(2 * ANSWER));
                if let Some(files) = tls {
                    builder = builder.certs(files);
                }
                Some(builder.build().map_err(text)?)
            }
        };
        Ok(Self { servers, cluster })
    }

    async fn check(&self, link: &mut impl ConnectionLike) -> Result<(), ConnectError> {
        let answer = link.req_packed_command(&cmd("INFO")).await.and_then(Value::extract_error);
        let mut texts = Vec::new();
        collect(answer.map_err(connect_error)?, &mut texts);
        if texts.is_empty() {
            return Err(ConnectError::Unreachable("INFO has no answer".into()));
        }
        texts.iter().try_for_each(|text| judge(text).map_err(ConnectError::from))
    }

    async fn open(&self) -> Result<RedisStore, ConnectError> {
        if let Some(cluster) = &self.cluster {
            let mut link = cluster.get_async_connection().await.map_err(connect_error)?;
            self.check(&mut link).await?;
            return Ok(RedisStore(Link::Cluster(link)));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        let server = self.servers.first().ok_or_else(|| ConnectError::Unreachable("no server".into()))?;
        let link = server.get_multiplexed_async_connection_with_config(&config).await;
        let mut link = link.map_err(connect_error)?;
        self.check(&mut link).await?;
        Ok(RedisStore(Link::Server(link)))
    }

    async fn subscription(&self, channel: &str) -> Result<Notices, ConnectError> {
        let mut last = ConnectError::Unreachable("no server".into());
        for server in &self.servers {
            let subscribed = async {
                let mut link = server.get_async_pubsub().await?;
                link.subscribe(channel).await?;
                Ok::<_, RedisError>(link)
            };
            match subscribed.await {
                Ok(link) => return Ok(notices(link)),
                Err(error) => last = connect_error(error),
            }
        }
        Err(last)
    }
}

/// What comes on a subscribed connection; ends when it does not answer a ping.
fn notices(link: redis::aio::PubSub) -> Notices {
    let (sink, messages) = link.split();
    let state = (sink, messages, tokio::time::Instant::now() + PING);
    let stream = futures_util::stream::unfold(state, |(mut sink, mut messages, mut ping_at)| async move {
        loop {
            tokio::select! {
                message = messages.next() => {
                    let payload = Bytes::copy_from_slice(message?.get_payload_bytes());
                    return Some((payload, (sink, messages, ping_at)));
                }
                () = tokio::time::sleep_until(ping_at) => {
                    timeout(ANSWER, sink.ping::<Value>()).await.ok()?.ok()?;
                    ping_at = tokio::time::Instant::now() + PING;
                }
            }
        }
    });
    stream.boxed()
}

impl Connector for Redis {
    type Store = RedisStore;

    async fn connect(&self) -> Result<RedisStore, ConnectError> {
        timeout(CONNECT, self.open()).await.unwrap_or_else(|_| Err(too_late()))
    }

    async fn listen(&self, channel: &str) -> Result<Notices, ConnectError> {
        timeout(CONNECT, self.subscription(channel)).await.unwrap_or_else(|_| Err(too_late()))
    }
}

fn too_late() -> ConnectError {
    ConnectError::Unreachable(format!("no answer within {CONNECT:?}"))
}

fn connect_error(error: RedisError) -> ConnectError {
    let text = error.to_string();
    let login = matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
        || error.kind() == ErrorKind::AuthenticationFailed;
    // What TLS says comes as an I/O error, of which only the text tells.
    let tls = error.is_io_error() && ["certificate", "alert"].iter().any(|word| text.contains(word));
    match (login, tls) {
        (true, _) => ConnectError::Login(text),
        (_, true) => ConnectError::Tls(text),
        _ => ConnectError::Unreachable(text),
    }
}

/// Texts in an answer; a cluster answers INFO with one per node.
fn collect(value: Value, texts: &mut Vec<String>) {
    match value {
        Value::BulkString(bytes) => {
            texts.extend(String::from_utf8(bytes).ok().filter(|text| text.contains('\n')))
        }
        Value::VerbatimString { text, .. } => texts.push(text),
        Value::Array(values) => values.into_iter().for_each(|value| collect(value, texts)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(_, value)| collect(value, texts)),
        _ => {}
    }
}

/// A connection to a real Redis.
#[derive(Clone)]
pub struct RedisStore(Link);

#[derive(Clone)]
enum Link {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisStore")
    }
}

impl Store for RedisStore {
    async fn run(&mut self, commands: Vec<Command>) -> Result<Vec<Reply>, Lost> {
        match &mut self.0 {
            // The crate takes an empty pipeline for a mistake.
            _ if commands.is_empty() => Ok(Vec::new()),
            Link::Server(link) => pipelined(link, &commands).await,
            Link::Cluster(link) => routed(link, &commands).await,
        }
    }
}

async fn pipelined(link: &mut MultiplexedConnection, commands: &[Command]) -> Result<Vec<Reply>, Lost> {
    let mut pipeline = redis::Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(reply::command(command));
    }
    let values = link.send_packed_commands(&pipeline, 0, commands.len()).await;
    let values = values.map_err(|error| Lost(error.to_string()))?;
    if values.len() != commands.len() {
        return Err(Lost(format!("{} answers to {} commands", values.len(), commands.len())));
    }
    commands.iter().zip(values).map(|(command, value)| reply::reply(command, value)).collect()
}

/// A cluster takes each command where its key lives. Those of one rank share a node, but not the order of this list: whoever needs an order
/// waits for answers.
async fn routed(link: &ClusterConnection, commands: &[Command]) -> Result<Vec<Reply>, Lost> {
    let one = |command: &Command| {
        let (mut link, it) = (link.clone(), reply::command(command));
        let command = command.clone();
        async move {
            match link.req_packed_command(&it).await {
                Ok(value) => reply::reply(&command, value),
                Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                    Ok(Reply::Refused(reply::refusal(&error)))
                }
                Err(error) => Err(Lost(error.to_string())),
            }
        }
    };
    try_join_all(commands.iter().map(one)).await
}
