//! Keeps the catalogue: follows the view of instances, fetches what their cards name, verifies and parses it off the runtime threads.
//!
//! What cannot be fetched now is tried again with growing pauses; what is not what its digest says, or cannot be parsed, is named once and
//! disables only the models that need it. The shelf holds what the present view names, nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::MAX_ARTIFACT_BYTES;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::card::Card;
use super::catalogue::{Catalogue, Loaded, Shelf};
use super::template::ChatTemplate;
use super::tokenizer::ModelTokenizer;
use crate::domain::digest::Digest;
use crate::domain::member::{Kind, Members};
use crate::ports::ArtifactSource;

/// First pause after a failed fetch.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Makes catalogues of views.
pub struct Loader {
    source: Arc<dyn ArtifactSource>,
    members: watch::Receiver<Arc<Members>>,
    catalogue: watch::Sender<Arc<Catalogue>>,
    shelf: Shelf,
    running: HashMap<Wanted, AbortHandle>,
    tasks: JoinSet<Arrived>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Wanted {
    Card(Digest),
    Tokenizer(Digest),
    Template(Digest),
}

enum Arrived {
    Card(Digest, Loaded<Card>),
    Tokenizer(Digest, Loaded<ModelTokenizer>),
    Template(Digest, Loaded<ChatTemplate>),
}

impl Loader {
    /// A loader that fetches from `source`, and where its catalogues appear.
    pub fn new(
        source: Arc<dyn ArtifactSource>,
        members: watch::Receiver<Arc<Members>>,
    ) -> (Self, watch::Receiver<Arc<Catalogue>>) {
        let (catalogue, receiver) = watch::channel(Arc::default());
        let loader = Self {
            source,
            members,
            catalogue,
            shelf: Shelf::default(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
        };
        (loader, receiver)
    }

    /// Runs until the view ends.
    pub async fn run(mut self) {
        loop {
            let members = self.members.borrow_and_update().clone();
            self.want(&members);
            let catalogue = Catalogue::new(&members, &self.shelf);
            self.catalogue.send_modify(|it| *it = Arc::new(catalogue.after(it, Instant::now())));
            tokio::select! {
                changed = self.members.changed() => if changed.is_err() { return },
                Some(arrived) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(arrived) = arrived {
                        self.put(arrived);
                    }
                }
            }
        }
    }

    /// Starts what the view newly names, forgets what it no longer does.
    fn want(&mut self, members: &Members) {
        let workers = members.values().filter(|it| it.kind == Kind::Worker && !it.card.is_empty());
        let mut wanted: HashSet<Wanted> = workers.map(|it| Wanted::Card(it.card.clone())).collect();
        self.shelf.cards.retain(|digest, _| wanted.contains(&Wanted::Card(digest.clone())));
        for card in self.shelf.cards.values() {
            if let Loaded::Ready(card) = card {
                wanted.insert(Wanted::Tokenizer(card.set.tokenizer.clone()));
                wanted.insert(Wanted::Template(card.set.template.clone()));
            }
        }
        self.shelf.tokenizers.retain(|digest, _| wanted.contains(&Wanted::Tokenizer(digest.clone())));
        self.shelf.templates.retain(|digest, _| wanted.contains(&Wanted::Template(digest.clone())));
        self.running.retain(|it, task| {
            let keep = wanted.contains(it);
            if !keep {
                task.abort();
            }
            keep
        });
        for it in wanted {
            let here = match &it {
                Wanted::Card(digest) => self.shelf.cards.contains_key(digest),
                Wanted::Tokenizer(digest) => self.shelf.tokenizers.contains_key(digest),
                Wanted::Template(digest) => self.shelf.templates.contains_key(digest),
            };
            if !here && !self.running.contains_key(&it) {
                let task = self.tasks.spawn(fetch(self.source.clone(), it.clone()));
                self.running.insert(it, task);
            }
        }
    }

    fn put(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Card(digest, card) => {
                self.running.remove(&Wanted::Card(digest.clone()));
                self.shelf.cards.insert(digest, card);
            }
            Arrived::Tokenizer(digest, tokenizer) => {
                self.running.remove(&Wanted::Tokenizer(digest.clone()));
                self.shelf.tokenizers.insert(digest, tokenizer);
            }
            Arrived::Template(digest, template) => {
                self.running.remove(&Wanted::Template(digest.clone()));
                self.shelf.templates.insert(digest, template);
            }
        }
    }
}

async fn fetch(source: Arc<dyn ArtifactSource>, wanted: Wanted) -> Arrived {
    match wanted {
        Wanted::Card(digest) => {
            let bytes = patiently(&digest, "card", || source.card(&digest)).await;
            let named = digest.clone();
            let card = parsed("card", digest.clone(), move || Card::parse(&named, &bytes)).await;
            Arrived::Card(digest, card)
        }
        Wanted::Tokenizer(digest) => {
            let bytes = patiently(&digest, "tokenizer", || source.artifact(&digest)).await;
            let named = digest.clone();
            let tokenizer = parsed("tokenizer", digest.clone(), move || {
                verify(&named, &bytes)?;
                ModelTokenizer::parse(&bytes).map_err(|error| error.to_string())
            });
            Arrived::Tokenizer(digest, tokenizer.await)
        }
        Wanted::Template(digest) => {
            // A card without a template is that of a model for completions only.
            let bytes = if digest.is_empty() {
                Bytes::from_static(b"{}")
            } else {
                patiently(&digest, "template", || source.artifact(&digest)).await
            };
            let named = digest.clone();
            let template = parsed("template", digest.clone(), move || {
                if !named.is_empty() {
                    verify(&named, &bytes)?;
                }
                ChatTemplate::parse(&bytes).map_err(|error| error.to_string())
            });
            Arrived::Template(digest, template.await)
        }
    }
}

async fn patiently<F>(digest: &Digest, what: &str, fetch: impl Fn() -> F) -> Bytes
where
    F: Future<Output = Result<Bytes, armature_contracts::error::Fault>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        match fetch().await {
            Ok(bytes) => return bytes,
            Err(fault) => tracing::warn!(%digest, what, %fault, "cannot fetch, trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn parsed<T, E>(
    what: &'static str,
    digest: Digest,
    parse: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Loaded<T>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let why = match tokio::task::spawn_blocking(parse).await {
        Ok(Ok(it)) => return Loaded::Ready(Arc::new(it)),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.to_string(),
    };
    tracing::error!(what, %digest, error = why, "artifact is not usable");
    Loaded::Broken(format!("its {what} {digest} is not usable: {why}").into())
}

fn verify(digest: &Digest, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MAX_ARTIFACT_BYTES {
        return Err(format!("{} bytes, the limit is {MAX_ARTIFACT_BYTES}", bytes.len()));
    }
    let got = Digest::of(bytes);
    if got == *digest { Ok(()) } else { Err(format!("its content has the digest {got}")) }
}
