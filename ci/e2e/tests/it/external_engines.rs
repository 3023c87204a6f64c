//! `armature up --backend`: before two real servers of llama.cpp on the reference model, which are killed and started again.

use std::path::{Path, PathBuf};

use armature_contracts::inference::v1::generate_request::Input;
use armature_contracts::inference::v1::generate_response::Event;
use armature_contracts::inference::v1::inference_service_client::InferenceServiceClient;
use armature_contracts::inference::v1::{GenerateRequest, SamplingParams, StopConditions};
use armature_e2e::client::Client;
use armature_e2e::process::{Process, free_port};
use armature_e2e::suite::Suite;
use armature_e2e::wait_until;
use serde_json::{Value, json};

/// Python with llama.cpp's server, and the reference model.
#[derive(Debug)]
struct LlamaCpp {
    python: PathBuf,
    model: PathBuf,
    dir: tempfile::TempDir,
}

/// What a real engine needs is not there.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("ARMATURE_ENGINE_PYTHON names no Python with ci/e2e/requirements.txt: ci/gate.sh sets it")]
    Python,
    #[error("the reference model is not in {0}: armature model fetch")]
    Model(PathBuf),
}

impl LlamaCpp {
    fn find() -> Result<Self, Missing> {
        let python = std::env::var_os("ARMATURE_ENGINE_PYTHON").map(PathBuf::from).ok_or(Missing::Python)?;
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/armature"));
        let cache = std::env::var_os("ARMATURE_CACHE").map(PathBuf::from).or_else(home).unwrap_or_default();
        let models = cache.join("models");
        let model = std::fs::read_dir(&models).into_iter().flatten().flatten().map(|entry| entry.path());
        let model = model.filter(|path| path.extension().is_some_and(|it| it == "gguf")).min();
        let model = model.ok_or(Missing::Model(models))?;
        Ok(Self { python, model, dir: tempfile::tempdir().unwrap() })
    }

    /// Starts a server.
    fn start(&self, name: &str, port: u16) -> Server {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/llama_cpp_server.py");
        let args = [script.display().to_string(), self.model.display().to_string(), port.to_string()];
        let process = Process::start(self.dir.path(), name, &self.python.display().to_string(), &args);
        let url = format!("http://127.0.0.1:{port}");
        Server { process, client: Client::new(&url), url }
    }
}

/// One server.
struct Server {
    process: Process,
    client: Client,
    url: String,
}

impl Server {
    /// A number of its metrics page; none while it does not answer.
    async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.client.get_text("/metrics").await;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

/// Without them nothing is tested, which CI must not take for a success.
fn found() -> Option<LlamaCpp> {
    match LlamaCpp::find() {
        Ok(found) => Some(found),
        Err(missing) if std::env::var_os("ARMATURE_CI").is_some() => panic!("{missing}"),
        Err(missing) => {
            eprintln!("SKIPPED {}: {missing}", module_path!());
            None
        }
    }
}

/// One turn of a conversation: who answered, how much of the prompt it had cached, and the answer.
async fn turn(suite: &Suite, model: &str, messages: &Value) -> (String, u64, String) {
    let body = json!({"model": model, "messages": messages, "max_tokens": 8, "temperature": 0});
    let answer = suite.client.post("/v1/chat/completions", &body).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let cached = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    let text = answer.body["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(!text.is_empty());
    (answer.header("x-armature-decode-worker"), cached, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_llama_cpp_behind_one_command() {
    let Some(llama_cpp) = found() else { return };
    let ports = [free_port(), free_port()];
    let mut servers = [llama_cpp.start("engine-a", ports[0]), llama_cpp.start("engine-b", ports[1])];
    let urls = servers.each_ref().map(|server| server.url.clone());
    let suite = Suite::start(&["--backend", &urls[0], "--backend", &urls[1]]).await;
    let model =
        suite.client.get("/v1/models").await.unwrap().body["data"][0]["id"].as_str().unwrap().to_owned();
    let workers = suite.workers().await;
    assert!(workers.len() == 2 && workers.iter().all(|worker| worker.engine == "llamacpp"), "{workers:?}");

    conversations_stick(&suite, &model).await;
    a_killed_engines_stream_goes_on(&suite, &model, &llama_cpp, &mut servers, &ports).await;
}

/// Later turns go where the earlier ones are cached.
async fn conversations_stick(suite: &Suite, model: &str) {
    for topic in ["rivers", "mountains", "winter"] {
        let system =
            format!("You answer shortly. The topic is {topic}. {}", "Be brief and kind. ".repeat(12));
        let mut messages =
            json!([{"role": "system", "content": system}, {"role": "user", "content": "What is it?"}]);
        let (first, _, text) = turn(suite, model, &messages).await;
        for question in ["And where?", "And why?"] {
            let history = messages.as_array_mut().unwrap();
            let last = if history.len() == 2 { text.as_str() } else { "It is so." };
            history.push(json!({"role": "assistant", "content": last}));
            history.push(json!({"role": "user", "content": question}));
            let (worker, cached, _) = turn(suite, model, &messages).await;
            assert_eq!(worker, first, "{topic}: {question}");
            assert!(cached >= 64, "{topic}: the engine itself has found only {cached} tokens in its cache");
        }
    }
}

async fn a_killed_engines_stream_goes_on(
    suite: &Suite,
    model: &str,
    llama_cpp: &LlamaCpp,
    servers: &mut [Server; 2],
    ports: &[u16; 2],
) {
    const TOKENS: u32 = 24;
    let mut client = InferenceServiceClient::connect(format!("http://{}", suite.grpc)).await.unwrap();
    let request = GenerateRequest {
        model: model.into(),
        input: Some(Input::Text("Once upon a time there was a".into())),
        sampling: Some(SamplingParams { temperature: Some(0.0), ..Default::default() }),
        stop: Some(StopConditions { max_tokens: Some(TOKENS), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    };
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let (mut text, mut killed, mut finished) = (String::new(), None, None);
    while let Some(answer) = stream.message().await.unwrap() {
        match answer.event.unwrap() {
            Event::Delta(delta) => text += &delta.text,
            Event::Finished(end) => finished = Some(end),
            _ => {}
        }
        if killed.is_none() && text.len() > 8 {
            let busy = servers.each_ref().map(|server| server.metric("llamacpp:requests_processing"));
            let busy = futures_util::future::join_all(busy).await;
            let at = busy.iter().position(|running| *running == Some(1.0)).expect("one of them works at it");
            servers[at].process.kill();
            killed = Some(at);
        }
    }
    let (killed, finished) = (killed.expect("it was killed in the middle"), finished.expect("an account"));
    assert_eq!((finished.migrations, finished.migrated_inexact), (1, true));
    assert_eq!(finished.usage.unwrap().completion_tokens, TOKENS, "{text:?}");

    wait_until("nobody is sent to the dead one", async || ready(suite).await == 1).await;
    let (_, _, _) = turn(suite, model, &json!([{"role": "user", "content": "Still there?"}])).await;
    servers[killed] = llama_cpp.start("engine-again", ports[killed]);
    wait_until("it rejoins", async || ready(suite).await == 2).await;
    // Requests at once, so that there is a reason to use both.
    let mut round = 0;
    wait_until("it is given work again", async || {
        round += 1;
        let burst = (0..4).map(|n| {
            let body = json!({"model": model, "prompt": format!("{round} {n} is a number"), "max_tokens": 2});
            async move { suite.client.post("/v1/completions", &body).await.unwrap().status }
        });
        let answered = futures_util::future::join_all(burst).await;
        assert!(answered.iter().all(|status| *status == 200), "{answered:?}");
        servers[killed].metric("llamacpp:tokens_predicted_total").await.is_some_and(|tokens| tokens > 0.0)
    })
    .await;
    suite.idle().await;
}

async fn ready(suite: &Suite) -> usize {
    suite.workers().await.iter().filter(|worker| worker.status == "READY").count()
}

/// The word of a router about its workers is what people look at: a URL without an engine says what to do.
#[tokio::test]
async fn a_url_without_an_engine_is_named_with_what_to_do() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let args = [
        "up",
        "--backend",
        &url,
        "--backend-patience",
        "0",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--router",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let (code, said) = Process::run("armature", &args).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&url) && said.contains("is it running"), "{said}");
    let (code, said) = Process::run("armature", &["up", "--backend", "gpu1:8000"]).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("http://host:port"), "{said}");
}
