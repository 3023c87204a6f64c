//! One request in the engine: a connection for each choice, followed until all have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::call::{self, Failed};
use super::client::Answer;
use super::engine::OpenAiEngine;
use crate::domain::ids::RequestId;
use crate::domain::openai::ask::{self, Ask, Prompt};
use crate::domain::openai::chunk::{self, Chunk, EngineUsage, Said};
use crate::domain::openai::dialect::PromptForm;
use crate::domain::openai::progress::{Progress, Told};
use crate::domain::openai::retokenize::Retokenizer;
use crate::domain::openai::sse::SseDecoder;
use crate::domain::request::{CacheRoot, FinishReason, ResumedChoice, Usage};
use crate::domain::sampled::Sampled;
use crate::domain::scheduler::Effect;
use crate::driver::{Event, Job};

/// How long an engine's count of tokens is waited for when the answer is there.
const ACCOUNT: Duration = Duration::from_secs(2);
/// Longest body of a refusal that is read, and how long it is waited for.
const MAX_REFUSAL: (usize, Duration) = (64 * 1024, Duration::from_secs(2));

/// What keeps this owner's cache from others': empty for nobody in particular.
pub(super) fn cache_salt(root: &CacheRoot) -> String {
    if root.cache_salt.is_empty() {
        return String::new();
    }
    let mut hasher = blake3::Hasher::new();
    for part in [&root.tenant, &root.cache_salt] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Follows a request to its end; its last event is Finished or Lost.
pub(super) async fn request(
    engine: Arc<OpenAiEngine>,
    id: RequestId,
    job: Job,
    stopped: Vec<watch::Receiver<Option<FinishReason>>>,
    events: mpsc::UnboundedSender<Event>,
) {
    let request = Request { engine, id, job, events, begun: AtomicBool::new(false) };
    let mut choices: FuturesUnordered<_> = request
        .job
        .submission
        .choices
        .iter()
        .zip(stopped)
        .map(|(choice, stopped)| request.choice(choice, stopped))
        .collect();
    let prompt_tokens = request.job.submission.prompt.len() as u64;
    let mut usage = Usage { prompt_tokens, computed: prompt_tokens, ..Usage::default() };
    let mut lost = None;
    while let Some(ended) = choices.next().await {
        match ended {
            Ok(account) => {
                usage.generated += u64::from(account.generated);
                if let Some(cached) = account.cached {
                    usage.cached = usage.cached.max(u64::from(cached).min(prompt_tokens));
                }
            }
            Err((name, fault)) => {
                request.engine.metrics.failed(name);
                lost = Some(*fault);
                break;
            }
        }
    }
    // Closes the connections of choices that go on.
    drop(choices);
    usage.computed = prompt_tokens - usage.cached;
    let Request { engine, events, .. } = request;
    engine.change(|shared, _| shared.counters.prompt_tokens_computed += usage.computed);
    engine.ended(id);
    let last = match lost {
        Some(fault) => Event::Lost(fault),
        None => Event::Effect(Effect::Finished { request: id, usage }),
    };
    // A handler that is gone has nobody to tell.
    let _ = events.send(last);
}

struct Request {
    engine: Arc<OpenAiEngine>,
    id: RequestId,
    job: Job,
    events: mpsc::UnboundedSender<Event>,
    begun: AtomicBool,
}

/// What a choice has used.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    generated: u32,
    cached: Option<u32>,
}

impl Request {
    async fn choice(
        &self,
        choice: &ResumedChoice,
        mut stopped: watch::Receiver<Option<FinishReason>>,
    ) -> Result<Account, Failed> {
        let mut up = self.engine.up.subscribe();
        let mut account = Account::default();
        let deadline = self.job.submission.deadline.map(|at| Instant::from_std(self.engine.start + at.0));
        let ended = tokio::select! {
            biased;
            stop = stopped.wait_for(Option::is_some) => stop.ok().and_then(|stop| *stop).unwrap_or(FinishReason::Cancelled),
            () = until(deadline) => FinishReason::Deadline,
            _ = up.wait_for(|up| !up) => {
                let fault = Fault::new(Reason::WorkerLost, "the engine does not answer any more");
                return Err(("away", Box::new(fault)));
            }
            followed = self.follow(choice, &mut account) => return followed.map(|()| account),
        };
        self.tell(Effect::ChoiceEnded { request: self.id, choice: choice.index, finish: ended });
        Ok(account)
    }

    async fn follow(&self, choice: &ResumedChoice, account: &mut Account) -> Result<(), Failed> {
        let stop = &self.job.submission.stop;
        let abilities = self.engine.found.abilities;
        let prompt = self.job.submission.prompt.len();
        let room = u32::try_from(self.engine.found.context_length.saturating_sub(prompt)).unwrap_or(u32::MAX);
        let max_tokens = stop.max_tokens.min(room);
        let generated = u32::try_from(choice.generated.len()).unwrap_or(u32::MAX);
        if generated >= max_tokens {
            self.tell(Effect::ChoiceEnded {
                request: self.id,
                choice: choice.index,
                finish: FinishReason::Length,
            });
            return Ok(());
        }
        let stops = if abilities.tells_ids { Arc::clone(&stop.stop_token_ids) } else { Arc::from([]) };
        let mut following = Following {
            request: self,
            choice: choice.index,
            progress: Progress::new(&choice.generated, stops, stop.min_tokens, max_tokens),
            retokenizer: Retokenizer::after(&choice.generated),
            usage: None,
            unseen_end: 0,
            account,
        };
        let mut answer = self.ask(choice, max_tokens - generated, generated).await?;
        following.read(&mut answer).await?;
        following.settle();
        Ok(())
    }

    /// Asks the engine, and gives its answer once it has begun.
    async fn ask(&self, choice: &ResumedChoice, max_tokens: u32, generated: u32) -> Result<Answer, Failed> {
        let found = &self.engine.found;
        let ids: Vec<u32> = self.job.submission.prompt.iter().chain(&choice.generated).copied().collect();
        let text = match found.abilities.prompt {
            PromptForm::Ids => None,
            PromptForm::Text { adds_bos } => {
                let own = if adds_bos && ids.first() == found.bos.as_ref() { &ids[1..] } else { &ids[..] };
                Some(found.vocabulary.decode(own))
            }
        };
        let salt = cache_salt(&self.job.submission.root);
        let ask = Ask {
            model: &found.model,
            params: &self.job.params,
            ignore_eos: self.job.ignore_eos,
            max_tokens,
            min_tokens: self.job.submission.stop.min_tokens.saturating_sub(generated),
            seed: ask::choice_seed(self.job.seed, choice.index, choice.generated.len()),
            context: found.context_length,
            cache_salt: &salt,
        };
        let prompt = text.as_deref().map_or(Prompt::Ids(&ids), Prompt::Text);
        let body = ask::body(&ask, prompt, found.abilities);
        let path = found.abilities.dialect.generate_path();
        let answer = self.engine.client.post(path, &body).await.map_err(|error| {
            self.engine.doubt.notify_one();
            call::broke(&error, false)
        })?;
        if answer.status != StatusCode::OK {
            let (status, retry_after) = (answer.status, answer.retry_after);
            let (limit, patience) = MAX_REFUSAL;
            let body = timeout(patience, answer.whole(limit)).await;
            return Err(call::refused(
                status,
                retry_after,
                &body.ok().and_then(Result::ok).unwrap_or_default(),
            ));
        }
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.engine.change(|shared, _| shared.table.started(self.id));
            let _ = self.events.send(Event::Admitted);
        }
        Ok(answer)
    }

    fn tell(&self, effect: Effect) {
        // A handler that is gone has stopped the choice as well.
        let _ = self.events.send(Event::Effect(effect));
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// One choice while the engine answers.
struct Following<'a> {
    request: &'a Request,
    choice: u32,
    progress: Progress,
    retokenizer: Retokenizer,
    usage: Option<EngineUsage>,
    /// An end token that the engine has counted and not told.
    unseen_end: u32,
    account: &'a mut Account,
}

impl Following<'_> {
    async fn read(&mut self, answer: &mut Answer) -> Result<(), Failed> {
        let mut decoder = SseDecoder::default();
        let mut last_by = None;
        loop {
            let piece = match last_by {
                None => answer.piece().await,
                // The answer is complete: what is still to come is what it has cost.
                Some(by) => match tokio::time::timeout_at(by, answer.piece()).await {
                    Ok(Ok(piece)) => Ok(piece),
                    Ok(Err(_)) | Err(_) => return Ok(()),
                },
            };
            let piece = piece.map_err(|error| {
                self.request.engine.doubt.notify_one();
                call::broke(&error, true)
            })?;
            let Some(piece) = piece else {
                let lost = Fault::new(Reason::WorkerLost, "the engine ended its answer in the middle");
                return if self.progress.ended() { Ok(()) } else { Err(("cut_off", Box::new(lost))) };
            };
            for event in decoder.push(&piece).map_err(|error| call::misbehaved("oversized", error))? {
                if self.take(&event)? {
                    return Ok(());
                }
            }
            if self.progress.ended() && last_by.is_none() {
                last_by = Some(Instant::now() + ACCOUNT);
            }
        }
    }

    /// Takes one event; true when nothing more is wanted of this answer.
    fn take(&mut self, event: &[u8]) -> Result<bool, Failed> {
        let dialect = self.request.engine.found.abilities.dialect;
        let said = chunk::read(event, dialect).map_err(|error| call::misbehaved("malformed", error));
        if self.progress.ended() {
            // Whatever is wrong now, the client has the whole answer.
            return Ok(match said {
                Ok(Said::Chunk(chunk)) => {
                    self.usage = chunk.usage.or(self.usage);
                    // An engine that goes on generating is not waited for.
                    self.usage.is_some() || chunk.tokens.is_some_and(|tokens| !tokens.is_empty())
                }
                _ => true,
            });
        }
        match said? {
            Said::Chunk(chunk) => self.chunk(chunk),
            Said::Done => {
                let missing = "it ended the answer without a finish_reason";
                Err(call::misbehaved("unfinished", missing))
            }
            Said::Error(text) => {
                let text = format!("the engine failed in the middle: {}", call::said(text.as_bytes()));
                Err(("error_event", Box::new(Fault::new(Reason::EngineFailed, text))))
            }
        }
    }

    fn chunk(&mut self, chunk: Chunk) -> Result<bool, Failed> {
        let found = &self.request.engine.found;
        let engine_ends = chunk.finish.is_some();
        self.usage = chunk.usage.or(self.usage);
        let tokens = match chunk.tokens.filter(|_| found.abilities.tells_ids) {
            Some(tokens) => tokens,
            None if found.abilities.tells_ids && chunk.text.is_empty() => Vec::new(),
            None => {
                let ids = self.retokenizer.push(&chunk.text, &*found.vocabulary);
                let ids = ids.map_err(|error| call::misbehaved("untokenizable", error))?;
                ids.into_iter().map(|token| Sampled { token, logprob: 0.0, top: Vec::new() }).collect()
            }
        };
        let told =
            self.progress.take(tokens, chunk.finish).map_err(|error| call::misbehaved("aborted", error))?;
        let count = told.iter().filter(|told| matches!(told, Told::Token { .. })).count();
        if count > 0 {
            self.account.generated += count as u32;
            self.request.engine.change(|shared, _| {
                shared.counters.tokens_generated += count as u64;
                shared.table.generated(self.request.id, count as u64);
            });
        }
        self.unseen_end =
            u32::from(told.iter().any(|told| matches!(told, Told::Ended(FinishReason::Stop(_)))));
        // The model's own end tokens end it in the engine as well, be it with its next event.
        let own_ends = &self.request.job.params.end_token_ids;
        let stopped_here = !engine_ends
            && told.iter().any(|told| match told {
                Told::Token { finish: Some(FinishReason::Stop(token)), .. } => !own_ends.contains(token),
                _ => false,
            });
        for told in told {
            let (request, choice) = (self.request.id, self.choice);
            self.request.tell(match told {
                Told::Token { position, sampled, finish } => {
                    Effect::Token { request, choice, position, sampled, finish }
                }
                Told::Ended(finish) => Effect::ChoiceEnded { request, choice, finish },
            });
        }
        // Stopped here and not by the engine: closing the connection tells it so. Otherwise its own count comes with its last part, or behind.
        Ok(stopped_here || (self.progress.ended() && self.usage.is_some()))
    }

    /// Compares the engine's count with ours, which is of what came.
    fn settle(&mut self) {
        let Some(usage) = self.usage else { return };
        self.account.cached = usage.cached;
        let metrics = &self.request.engine.metrics;
        let generated = self.account.generated..=self.account.generated + self.unseen_end;
        if self.request.engine.found.abilities.tells_ids && !generated.contains(&usage.generated) {
            metrics.disagrees("generated_tokens");
        }
        let submission = &self.request.job.submission;
        let own = submission.choices.iter().find(|choice| choice.index == self.choice);
        let sent = submission.prompt.len() + own.map_or(0, |choice| choice.generated.len());
        if usage.prompt as usize != sent {
            metrics.disagrees("prompt_tokens");
        }
    }
}
