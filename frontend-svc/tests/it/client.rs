//! A plain HTTP client over the in-process network.

use armature_svc_kit::address::Address;
use armature_svc_kit::network::Network;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::task::JoinHandle;

pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // The client is gone: so is its connection.
        self.connection.abort();
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of the events; the last one as text.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data =
            text.split("\n\n").filter(|it| !it.is_empty()).map(|it| it.strip_prefix("data: ").unwrap());
        data.map(|it| if it == "[DONE]" { Value::from(it) } else { serde_json::from_str(it).unwrap() })
            .collect()
    }

    /// The text of a choice in a stream of either API.
    pub(crate) fn streamed(&self, choice: u64) -> String {
        let events = self.events();
        let choices = events.iter().filter_map(|it| it["choices"].as_array()).flatten();
        let mine = choices.filter(|it| it["index"] == choice);
        mine.filter_map(|it| it["delta"]["content"].as_str().or(it["text"].as_str())).collect()
    }
}

impl Client {
    pub(crate) async fn connect(network: &Network, name: &str) -> Self {
        let connection = network.connect(&Address::mem(name)).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { sender, connection }
    }

    pub(crate) async fn open(&mut self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        self.sender.ready().await.unwrap();
        self.sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let (parts, body) = self.open(request).await.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(Request::get(path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string()).await
    }

    pub(crate) async fn post_with(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request = Self::request(path, body.to_string());
        for (name, value) in headers {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        self.send(request).await
    }

    pub(crate) async fn post_bytes(&mut self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(Self::request(path, body)).await
    }

    pub(crate) fn request(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        Request::post(path).header("host", "test").body(Full::new(body.into())).unwrap()
    }
}
