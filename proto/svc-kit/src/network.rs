//! One value that binds and connects by [`Address`], so that a service neither knows nor cares
//! whether its peers share its process.
//!
//! `mem:NAME` addresses live in the registry of one [`Network`]; clones share it. A connection is
//! a pair of pipes of [`MEM_PIPE_BYTES`] each, the accept queue holds [`MEM_ACCEPT_QUEUE`]
//! connections, and a name on which nobody listens refuses at once, as a closed port does.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::PollSemaphore;
use tonic::transport::server::Connected;

use crate::address::Address;
use crate::dial;

/// Bytes an in-process connection holds in each direction before the writer waits.
pub const MEM_PIPE_BYTES: usize = 256 * 1024;
/// In-process connections that may wait to be accepted; further callers wait, as on a full backlog.
pub const MEM_ACCEPT_QUEUE: usize = 128;
/// Pause after a failed accept, so that running out of file descriptors does not spin the loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds and connects. Cheap to clone; clones see each other's `mem:` listeners.
#[derive(Clone, Debug, Default)]
pub struct Network {
    mem: Arc<Names>,
}

type Names = Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>;

/// Why a listener could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port or the name.
    #[error(
        "{address} is already in use: stop the process that listens there, or configure another port (0 picks a free one)"
    )]
    InUse {
        /// The address that was asked for.
        address: Address,
    },
    /// Ports below 1024, mostly.
    #[error("no permission to listen on {address}: configure a port above 1023 or grant the capability")]
    NotPermitted {
        /// The address that was asked for.
        address: Address,
    },
    /// Anything else the system says.
    #[error("cannot listen on {address}")]
    Io {
        /// The address that was asked for.
        address: Address,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl BindError {
    fn new(address: &Address, source: io::Error) -> Self {
        let address = address.clone();
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            io::ErrorKind::PermissionDenied => Self::NotPermitted { address },
            _ => Self::Io { address, source },
        }
    }
}

impl Network {
    /// A network of its own, with no in-process listener yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens on `address`. Dropping the listener frees it.
    pub async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        match address {
            Address::Mem(name) => self.bind_mem(name),
            Address::Tcp { host, port } => bind_tcp(host, *port).await,
        }
        .map_err(|source| BindError::new(address, source))
    }

    /// Listens on a TCP address for a protocol that needs the sockets themselves. `mem:` addresses have none.
    pub async fn bind_sockets(&self, address: &Address) -> Result<TcpListener, BindError> {
        match address {
            Address::Mem(_) => Err(io::ErrorKind::Unsupported.into()),
            Address::Tcp { host, port } => TcpListener::bind((host.as_str(), *port)).await,
        }
        .map_err(|source| BindError::new(address, source))
    }

    /// Opens a connection to `address`; `ConnectionRefused` when nobody listens there.
    pub async fn connect(&self, address: &Address) -> io::Result<Connection> {
        match address {
            Address::Mem(name) => self.connect_mem(name).await,
            Address::Tcp { host, port } => {
                let stream = dial::by_name(host, *port).await?;
                stream.set_nodelay(true)?;
                Ok(Connection { io: Io::Tcp(stream), peer: address.clone(), _slot: None })
            }
        }
    }

    fn bind_mem(&self, name: &str) -> io::Result<Listener> {
        let mut names = lock(&self.mem);
        if names.get(name).is_some_and(|held| !held.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, queue) = mpsc::channel(MEM_ACCEPT_QUEUE);
        names.insert(name.to_owned(), sender);
        let accept = Accept::Mem { name: name.to_owned(), queue, names: self.mem.clone() };
        Ok(Listener { accept, address: Address::mem(name), pause: None, slots: None, slot: None })
    }

    async fn connect_mem(&self, name: &str) -> io::Result<Connection> {
        let refused =
            || io::Error::new(io::ErrorKind::ConnectionRefused, format!("nobody listens on mem:{name}"));
        let queue = lock(&self.mem).get(name).cloned().ok_or_else(refused)?;
        let (near, far) = tokio::io::duplex(MEM_PIPE_BYTES);
        queue.send(far).await.map_err(|_| refused())?;
        Ok(Connection { io: Io::Mem(near), peer: Address::mem(name), _slot: None })
    }
}

async fn bind_tcp(host: &str, port: u16) -> io::Result<Listener> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?.into();
    Ok(Listener { accept: Accept::Tcp(listener), address, pause: None, slots: None, slot: None })
}

fn lock(names: &Names) -> MutexGuard<'_, HashMap<String, mpsc::Sender<DuplexStream>>> {
    // The map is valid after any panic: each critical section is one insert, get or remove.
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts connections. Usable by hand and as a stream.
#[derive(Debug)]
pub struct Listener {
    accept: Accept,
    address: Address,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    slots: Option<PollSemaphore>,
    slot: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Accept {
    Tcp(TcpListener),
    Mem { name: String, queue: mpsc::Receiver<DuplexStream>, names: Arc<Names> },
}

impl Listener {
    /// The bound address: the real port where port 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Keeps at most `connections` (at least one) open at a time; others wait to be accepted.
    #[must_use]
    pub fn limit(mut self, connections: usize) -> Self {
        let slots = Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS));
        self.slots = Some(PollSemaphore::new(Arc::new(slots)));
        self
    }

    /// The next connection. Failures to accept are logged and survived, so this only waits.
    pub async fn accept(&mut self) -> Connection {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Connection> {
        if let (Some(slots), None) = (&mut self.slots, &self.slot) {
            self.slot = std::task::ready!(slots.poll_acquire(cx));
        }
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let accepted = match &mut self.accept {
                Accept::Tcp(listener) => {
                    std::task::ready!(listener.poll_accept(cx)).and_then(|(stream, peer)| {
                        stream.set_nodelay(true)?;
                        Ok(Connection { io: Io::Tcp(stream), peer: peer.into(), _slot: None })
                    })
                }
                Accept::Mem { queue, .. } => match std::task::ready!(queue.poll_recv(cx)) {
                    Some(stream) => {
                        Ok(Connection { io: Io::Mem(stream), peer: self.address.clone(), _slot: None })
                    }
                    // The sender lives in the registry as long as this listener does.
                    None => return Poll::Pending,
                },
            };
            match accepted {
                Ok(connection) => {
                    return Poll::Ready(Connection { _slot: self.slot.take(), ..connection });
                }
                Err(error) if is_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "accept failed");
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// True when only the connection being accepted is at fault, not the listener.
fn is_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | InvalidInput)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Accept::Mem { name, queue, names } = &mut self.accept {
            queue.close();
            let mut names = lock(names);
            if names.get(name).is_some_and(mpsc::Sender::is_closed) {
                names.remove(name);
            }
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_accept(cx).map(|connection| Some(Ok(connection)))
    }
}

/// A byte stream between two services.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    peer: Address,
    _slot: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Io {
    Tcp(TcpStream),
    Mem(DuplexStream),
}

impl Connection {
    /// Who is at the other end; an in-process peer is known by the name that was dialled.
    pub fn peer(&self) -> &Address {
        &self.peer
    }
}

/// What a handler learns of the connection its request came on, from the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer(pub Address);

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer(self.peer.clone())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Mem(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Mem(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Io::Mem(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(stream) => stream.is_write_vectored(),
            Io::Mem(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Io::Mem(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Mem(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
