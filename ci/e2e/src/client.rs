//! An OpenAI client as plain as the protocol.

use futures_util::StreamExt;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio_stream::Stream;

/// Talks to one frontend.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body; `Null` when it is not JSON.
    pub body: Value,
}

impl Answer {
    /// A header's text; empty without one.
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    }
}

impl Client {
    /// A client of the frontend at `base`.
    pub fn new(base: &str) -> Self {
        Self { http: reqwest::Client::new(), base: base.to_owned() }
    }

    /// The frontend's base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET.
    ///
    /// # Errors
    /// What the transport says.
    pub async fn get(&self, path: &str) -> reqwest::Result<Answer> {
        Self::read(self.http.get(format!("{}{path}", self.base)).send().await?).await
    }

    /// GET of a page of text; empty when it cannot be had.
    pub async fn get_text(&self, path: &str) -> String {
        match self.http.get(format!("{}{path}", self.base)).send().await {
            Ok(response) => response.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// POST of a JSON body.
    ///
    /// # Errors
    /// What the transport says.
    pub async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Answer> {
        self.post_bytes(path, body.to_string().into_bytes()).await
    }

    /// POST of bytes that claim to be JSON.
    ///
    /// # Errors
    /// What the transport says.
    pub async fn post_bytes(&self, path: &str, body: Vec<u8>) -> reqwest::Result<Answer> {
        let request =
            self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        Self::read(request.body(body).send().await?).await
    }

    /// POST of a JSON body with further headers.
    ///
    /// # Errors
    /// What the transport says.
    pub async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> reqwest::Result<Answer> {
        let mut request =
            self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::read(request.body(body.to_string()).send().await?).await
    }

    async fn read(response: reqwest::Response) -> reqwest::Result<Answer> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await?;
        Ok(Answer { status, headers, body: serde_json::from_slice(&bytes).unwrap_or_default() })
    }

    /// POST whose answer is a stream of server-sent events: headers, then each `data:` payload as JSON, `[DONE]` left out.
    ///
    /// # Errors
    /// What the transport says before the first byte.
    pub async fn stream(
        &self,
        path: &str,
        body: &Value,
    ) -> reqwest::Result<(u16, HeaderMap, impl Stream<Item = Value> + Unpin + use<>)> {
        let request =
            self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut rest = Vec::new();
        let lines = response.bytes_stream().flat_map(move |part| {
            // A broken connection ends the stream as a payload that no test takes for an answer.
            match part {
                Ok(bytes) => rest.extend_from_slice(&bytes),
                Err(error) => {
                    rest.extend_from_slice(format!("data: {{\"broken\":\"{error}\"}}\n").as_bytes())
                }
            }
            let mut payloads = Vec::new();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line);
                let payload =
                    text.trim().strip_prefix("data:").map(str::trim).filter(|payload| *payload != "[DONE]");
                payloads.extend(payload.map(|payload| serde_json::from_str(payload).unwrap_or_default()));
            }
            futures_util::stream::iter(payloads)
        });
        Ok((status, headers, Box::pin(lines)))
    }
}

/// The text of a completion or chat chunk's first choice.
pub fn chunk_text(chunk: &Value) -> &str {
    let choice = &chunk["choices"][0];
    choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()).unwrap_or_default()
}
