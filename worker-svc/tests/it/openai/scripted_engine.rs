//! A test double: an OpenAI-compatible engine over real sockets that does what a script says, right or wrong. It computes nothing.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use armature_worker::domain::openai::dialect::Dialect;
use armature_worker::engine::llama::Artifacts;
use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// What it does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Bytes of the connection, head and all.
    Raw(String),
    /// The head of a streamed answer.
    Head,
    /// An event.
    Event(Value),
    /// So many tokens, an event each.
    Tokens(u32),
    /// `[DONE]`.
    Done,
    /// Says nothing more and keeps the connection.
    Hang,
    /// Ends its side of the connection and goes on reading.
    HalfClose,
    /// Resets the connection.
    Reset,
}

/// What it does, and what it has seen.
pub(crate) struct State {
    pub(crate) dialect: Dialect,
    /// It takes and tells token ids.
    pub(crate) ids: bool,
    scripts: Mutex<VecDeque<Vec<Act>>>,
    /// Bodies of streamed requests.
    pub(crate) asked: Mutex<Vec<Value>>,
    /// Streamed requests that it works at.
    pub(crate) running: AtomicUsize,
    /// Of health checks: it takes the connection and never answers.
    pub(crate) hangs: AtomicBool,
    /// Its metrics page.
    pub(crate) metrics: Mutex<String>,
    /// Set: tokens are sent without end, one whenever this is notified.
    pub(crate) paced: Mutex<Option<Arc<Notify>>>,
    /// The models it lists.
    pub(crate) models: Mutex<Value>,
}

/// The double. Dropping it closes its port and every connection.
pub(crate) struct ScriptedEngine {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<State>,
    serving: AbortOnDropHandle<()>,
}

/// The tokenizer of the tiny model's file.
pub(crate) fn tiny_tokenizer() -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    armature_tiny_gguf::write(&path, &armature_tiny_gguf::Spec::default()).unwrap();
    Tokenizer::from_bytes(Artifacts::read(&path).unwrap().tokenizer).unwrap()
}

/// The token that it generates at a position.
pub(crate) fn token(position: usize) -> u32 {
    // Letters of the tiny vocabulary: three special tokens, then bytes.
    3 + u32::from(b'a') + (position % 26) as u32
}

fn letter(position: usize) -> char {
    char::from(b'a' + (position % 26) as u8)
}

impl ScriptedEngine {
    /// A well-behaved engine of this kind.
    pub(crate) async fn start(dialect: Dialect, ids: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let owner = if dialect == Dialect::OpenAi { "somebody" } else { dialect.name() };
        let models =
            json!({"object": "list", "data": [{"id": "scripted", "owned_by": owner, "max_model_len": 512}]});
        let state = Arc::new(State {
            dialect,
            ids,
            scripts: Mutex::default(),
            asked: Mutex::default(),
            running: AtomicUsize::new(0),
            hangs: AtomicBool::new(false),
            metrics: Mutex::default(),
            paced: Mutex::default(),
            models: Mutex::new(models),
        });
        Self::serve(listener, state)
    }

    fn serve(listener: TcpListener, state: Arc<State>) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(connection(stream, Arc::clone(&shared)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, state, serving: AbortOnDropHandle::new(serving) }
    }

    /// Dies, and gives what starts it again at the same port.
    pub(crate) async fn die(self) -> impl AsyncFnOnce() -> Self {
        let Self { address, state, serving } = self;
        serving.abort();
        // Its listener is closed when it has ended.
        let _ = serving.await;
        async move || {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            Self::serve(socket.listen(64).unwrap(), state)
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next streamed request is answered so; later ones in their order.
    pub(crate) fn script(&self, acts: &[Act]) {
        self.state.scripts.lock().unwrap().push_back(acts.to_vec());
    }

    pub(crate) fn running(&self) -> usize {
        self.state.running.load(Ordering::SeqCst)
    }

    /// From now on streams end only when their client goes, and a token comes with each notification.
    pub(crate) fn endless(&self) -> Arc<Notify> {
        let pace = Arc::new(Notify::new());
        *self.state.paced.lock().unwrap() = Some(Arc::clone(&pace));
        pace
    }
}

async fn connection(mut stream: TcpStream, state: Arc<State>) {
    let Some((line, body)) = request(&mut stream).await else { return };
    match line.as_str() {
        "GET /health" | "GET /v1/models" if state.hangs.load(Ordering::SeqCst) => gone(&mut stream).await,
        "GET /health" => answer(&mut stream, 200, "", "").await,
        "GET /v1/models" => {
            let models = state.models.lock().unwrap().to_string();
            answer(&mut stream, 200, "", &models).await;
        }
        "GET /metrics" => {
            let page = state.metrics.lock().unwrap().clone();
            answer(&mut stream, if page.is_empty() { 404 } else { 200 }, "", &page).await;
        }
        "GET /props" => {
            answer(&mut stream, 200, "", r#"{"total_slots":2,"default_generation_settings":{"n_ctx":512}}"#)
                .await
        }
        "POST /v1/completions" | "POST /completion" => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            if body["stream"] == true {
                stream_answer(stream, body, &state).await;
            } else {
                let (status, text) = one_token(&body, &state);
                answer(&mut stream, status, "", &text).await;
            }
        }
        other => panic!("nobody asks an engine for {other}"),
    }
}

/// The answer to a probe.
fn one_token(body: &Value, state: &State) -> (u16, String) {
    let prompt = match &body["prompt"] {
        Value::Array(_) if !state.ids => {
            return (400, r#"{"error":{"message":"prompt must be text"}}"#.into());
        }
        Value::Array(ids) => ids.len(),
        // It puts a begin token before a text.
        text => tiny_tokenizer().encode(text.as_str().unwrap(), false).unwrap().len() + 1,
    };
    let mut choice = json!({"index": 0, "text": "a", "finish_reason": "length"});
    if state.ids && body["return_token_ids"] == true {
        choice["token_ids"] = json!([token(0)]);
    }
    (
        200,
        json!({"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": 1}}).to_string(),
    )
}

/// Counts a request while it lives.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn stream_answer(mut stream: TcpStream, body: Value, state: &State) {
    state.asked.lock().unwrap().push(body.clone());
    state.running.fetch_add(1, Ordering::SeqCst);
    let _running = Running(&state.running);
    let script = state.scripts.lock().unwrap().pop_front();
    let script = script.unwrap_or_else(|| vec![Act::Head, Act::Tokens(max_tokens(&body)), Act::Done]);
    let mut position = 0;
    for act in script {
        let bytes = match act {
            Act::Raw(text) => text,
            Act::Head => "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".into(),
            Act::Event(event) => format!("data: {event}\n\n"),
            Act::Done => "data: [DONE]\n\n".into(),
            Act::Tokens(count) => {
                let paced = state.paced.lock().unwrap().clone();
                if let Some(pace) = paced {
                    endless(&mut stream, state, &pace).await;
                    return;
                }
                let last = position + count as usize;
                let mut text = String::new();
                while position < last {
                    text +=
                        &event(state, position, position + 1 == last && last == max_tokens(&body) as usize);
                    position += 1;
                }
                if last == max_tokens(&body) as usize && state.dialect != Dialect::LlamaCpp {
                    let prompt = body["prompt"].as_array().map_or(0, Vec::len);
                    text += &format!(
                        "data: {}\n\n",
                        json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": last, "prompt_tokens_details": {"cached_tokens": 16}}})
                    );
                }
                text
            }
            Act::Hang => return gone(&mut stream).await,
            Act::HalfClose => {
                stream.shutdown().await.unwrap();
                return gone(&mut stream).await;
            }
            Act::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
        };
        if stream.write_all(bytes.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn max_tokens(body: &Value) -> u32 {
    body["max_tokens"].as_u64().or(body["n_predict"].as_u64()).unwrap() as u32
}

/// The event of one token in the engine's words.
fn event(state: &State, position: usize, last: bool) -> String {
    let text = letter(position).to_string();
    if state.dialect == Dialect::LlamaCpp {
        let chunk = json!({"content": text, "tokens": [token(position)], "stop": false});
        let end = json!({"content": "", "tokens": [], "stop": true, "stop_type": "limit", "tokens_predicted": position + 1, "tokens_evaluated": 20, "timings": {"cache_n": 16}});
        return if last { format!("data: {chunk}\n\ndata: {end}\n\n") } else { format!("data: {chunk}\n\n") };
    }
    let mut choice =
        json!({"index": 0, "text": text, "finish_reason": if last { json!("length") } else { json!(null) }});
    if state.ids {
        choice["token_ids"] = json!([token(position)]);
    }
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

async fn endless(stream: &mut TcpStream, state: &State, pace: &Notify) {
    let mut position = 0;
    loop {
        let mut byte = [0];
        tokio::select! {
            // Nothing more comes of a client but its end.
            _ = stream.read(&mut byte) => return,
            () = pace.notified() => {}
        }
        if stream.write_all(event(state, position, false).as_bytes()).await.is_err() {
            return;
        }
        position += 1;
    }
}

/// Waits for the client to go.
async fn gone(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

async fn answer(stream: &mut TcpStream, status: u16, headers: &str, body: &str) {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    // A client may have gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
}

/// Method and path, and the body.
async fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap().to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let line = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut words = line.split(' ');
    Some((format!("{} {}", words.next()?, words.next()?), bytes[head..head + length].to_vec()))
}
