//! gRPC without generated code: calls of any method, messages as the bytes that they are.

use std::convert::Infallible;
use std::pin::Pin;

use armature_contracts::MAX_MESSAGE_BYTES;
use bytes::{Buf, BufMut, Bytes};
use futures_util::Stream;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::server::StreamingService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// A stream of messages or, as its last item, of what ended it.
pub type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Messages as bytes.
#[derive(Debug, Clone, Copy)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Calls one address.
#[derive(Debug, Clone)]
pub struct Peer(tonic::client::Grpc<Channel>);

impl Peer {
    /// Connects to `host:port` when it is first called.
    ///
    /// # Panics
    /// When that is no address.
    pub fn at(address: &str) -> Self {
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        Self(tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// Calls `package.Service/Method`. On the wire any kind of call is a stream each way.
    ///
    /// # Errors
    /// What the peer or the transport says.
    ///
    /// # Panics
    /// When that is no name of a method.
    pub async fn call<S>(
        &self,
        method: &str,
        requests: Request<S>,
    ) -> Result<Response<Streaming<Bytes>>, Status>
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = format!("/{method}").try_into().expect("the name of a method");
        grpc.streaming(requests, path, Raw).await
    }
}

/// What stands for a service.
pub trait Double: Clone + Send + Sync + 'static {
    /// Answers a call of `package.Service/Method`.
    fn answer(
        &self,
        method: String,
        requests: Request<Streaming<Bytes>>,
    ) -> impl Future<Output = Result<Response<Answers>, Status>> + Send;
}

/// Serves a [`Double`] until it is dropped.
#[derive(Debug)]
pub struct Served {
    /// `host:port`.
    pub address: String,
    task: JoinHandle<()>,
}

impl Served {
    /// Takes a free port; must be called inside a runtime.
    ///
    /// # Panics
    /// When there is none.
    pub fn start(double: impl Double) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket of the runtime");
        let address = listener.local_addr().expect("an address").to_string();
        let incoming = TcpIncoming::from(TcpListener::from_std(listener).expect("inside a runtime"));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let method = request.uri().path().trim_start_matches('/').to_owned();
            let call = Call { double: double.clone(), method };
            let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(MAX_MESSAGE_BYTES);
            async move { Ok::<_, Infallible>(grpc.streaming(call, request).await) }
        });
        let task = tokio::spawn(async move {
            // Ends with the test.
            let _ = Server::builder().serve_with_incoming(service, incoming).await;
        });
        Self { address, task }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Call<D> {
    double: D,
    method: String,
}

impl<D: Double> StreamingService<Bytes> for Call<D> {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, requests: Request<Streaming<Bytes>>) -> Self::Future {
        let (double, method) = (self.double.clone(), std::mem::take(&mut self.method));
        Box::pin(async move { double.answer(method, requests).await })
    }
}
