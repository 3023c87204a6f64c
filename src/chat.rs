//! `armature chat`: a conversation in the terminal that shows what serving it cost.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use reqwest::header::HeaderMap;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::cli::ChatArgs;
use crate::sse::DataLines;

pub(crate) async fn run(args: ChatArgs) -> Result<()> {
    let client = reqwest::Client::new();
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(&client, &args.url).await?,
    };
    eprintln!("{model} at {} (empty line or Ctrl-D ends)", args.url);
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    let mut editor = DefaultEditor::new()?;
    loop {
        let read = tokio::task::block_in_place(|| editor.readline("you> "));
        let line = match read {
            Ok(line) if line.trim().is_empty() => return Ok(()),
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let _ = editor.add_history_entry(&line);
        messages.push(json!({"role": "user", "content": line}));
        let answer = ask(&client, &args, &model, &messages).await?;
        eprintln!("{}", answer.summary());
        messages.push(json!({"role": "assistant", "content": answer.text}));
    }
}

async fn first_model(client: &reqwest::Client, url: &str) -> Result<String> {
    let answer = client.get(format!("{url}/v1/models")).send().await.with_context(|| {
        format!("nothing answers at {url}: start it with `make run`, or name another place with --url")
    })?;
    let models: Value = answer.error_for_status()?.json().await?;
    let id = models["data"][0]["id"].as_str();
    Ok(id
        .context("no model is served yet: wait for a worker to become ready (`armature status`)")?
        .to_owned())
}

/// One answer and what it cost.
struct Answer {
    text: String,
    ttft: Duration,
    whole: Duration,
    prompt_tokens: u64,
    cached_tokens: u64,
    tokens: u64,
    decode_worker: String,
    prefill_worker: String,
}

impl Answer {
    fn summary(&self) -> String {
        let decode = self.whole.saturating_sub(self.ttft).as_secs_f64();
        let rate = self.tokens.saturating_sub(1) as f64 / decode.max(1e-9);
        let prefill = match self.prefill_worker.as_str() {
            "" => "prefilled there".to_owned(),
            worker => format!("prefill {worker}"),
        };
        format!(
            "[ttft {:.0} ms, {} tokens at {rate:.1}/s, prompt {} of which cached {}, decode {}, {prefill}]",
            self.ttft.as_secs_f64() * 1e3,
            self.tokens,
            self.prompt_tokens,
            self.cached_tokens,
            self.decode_worker,
        )
    }
}

async fn ask(client: &reqwest::Client, args: &ChatArgs, model: &str, messages: &[Value]) -> Result<Answer> {
    let mut body = json!({
        "model": model,
        "messages": messages,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if let Some(seed) = args.seed {
        body["seed"] = seed.into();
    }
    let start = Instant::now();
    let response = client.post(format!("{}/v1/chat/completions", args.url)).json(&body).send().await?;
    if !response.status().is_success() {
        let status = response.status();
        let error: Value = response.json().await.unwrap_or_default();
        bail!("{status}: {}", error["error"]["message"].as_str().unwrap_or("no message"));
    }
    let worker = |headers: &HeaderMap, name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let mut answer = Answer {
        text: String::new(),
        ttft: Duration::ZERO,
        whole: Duration::ZERO,
        prompt_tokens: 0,
        cached_tokens: 0,
        tokens: 0,
        decode_worker: worker(response.headers(), "x-armature-decode-worker"),
        prefill_worker: worker(response.headers(), "x-armature-prefill-worker"),
    };
    let mut lines = DataLines::default();
    let mut bytes = response.bytes_stream();
    while let Some(part) = bytes.next().await {
        for payload in lines.push(&part.context("the connection broke")?) {
            if payload != "[DONE]" {
                answer.take(&serde_json::from_str(&payload)?, start)?;
            }
        }
    }
    answer.whole = start.elapsed();
    show("\n");
    Ok(answer)
}

impl Answer {
    fn take(&mut self, chunk: &Value, start: Instant) -> Result<()> {
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("{message}");
        }
        if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
            if self.text.is_empty() {
                self.ttft = start.elapsed();
            }
            self.text += text;
            show(text);
        }
        let usage = &chunk["usage"];
        if usage.is_object() {
            self.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or_default();
            self.tokens = usage["completion_tokens"].as_u64().unwrap_or_default();
            self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        }
        Ok(())
    }
}

/// The conversation itself goes to standard output, figures to standard error.
#[allow(clippy::print_stdout)]
fn show(text: &str) {
    print!("{text}");
    let _ = std::io::stdout().flush();
}
