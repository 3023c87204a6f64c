//! The file backend: static instances from a watched file, over the memory backend.
//!
//! Static instances have no lease; they come and go with the file. Whoever registers is kept in memory as ever. A file that is broken changes
//! nothing: the last good state stands, and the log says what is wrong on which line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use armature_contracts::MAX_ARTIFACT_BYTES;
use armature_contracts::ids::InstanceId;
use armature_svc_kit::drain::Drain;
use bytes::Bytes;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use prometheus_client::metrics::counter::Counter;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::card::{self, CardError};
use super::listing::{self, ListedCard, ListingError};
use super::memory::Memory;
use crate::domain::blobs::NoRoom;
use crate::domain::instance::{CardFacts, Digest, Instance, LeaseEpoch, Namespace};
use crate::domain::store::RegisterError;

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It, or a file that it names, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its text is wrong.
    #[error(transparent)]
    Text(#[from] ListingError),
    /// A card is wrong.
    #[error("line {line}: {error}")]
    Card {
        /// Where the card is.
        line: usize,
        /// What is wrong with it.
        error: CardError,
    },
    /// No room for a card or an artifact.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// An instance cannot be listed.
    #[error(transparent)]
    Instances(#[from] RegisterError),
    /// The task that reads it died.
    #[error("loading failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// When each file that a state came from was changed last.
type Stamps = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

/// A file whose instances are in the memory backend.
#[derive(Debug)]
pub struct InstanceFile {
    path: PathBuf,
    memory: Memory,
    stamps: Stamps,
}

impl InstanceFile {
    /// Loads the file for the first time: unlike later, an error is the caller's.
    pub async fn load(path: PathBuf, memory: Memory) -> Result<Self, LoadError> {
        let mut file = Self { path, memory, stamps: Stamps::new() };
        file.reload().await?;
        Ok(file)
    }

    /// Takes over changes of the file until `drain` begins: when the system tells of one, and every `look` in case it does not.
    pub async fn follow(mut self, look: Duration, errors: Counter, drain: Drain) {
        let (told, mut changed) = mpsc::channel(1);
        // Held while we follow; dropping it ends the watch.
        let _watcher = watch(&self.path, told)
            .inspect_err(|error| tracing::warn!(%error, every = ?look, "file not watched, only looked at"));
        let mut tick = interval(look);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.draining() => return,
                Some(()) = changed.recv() => {}
                _ = tick.tick() => {}
            }
            let known = self.stamps.clone();
            let same = spawn_blocking(move || stamps(known.keys()) == known).await;
            if matches!(same, Ok(true)) {
                continue;
            }
            match self.reload().await {
                Ok(()) => tracing::info!(file = %self.path.display(), "instances loaded"),
                Err(error) => {
                    errors.inc();
                    tracing::error!(file = %self.path.display(), %error, "instances not loaded, the last good ones stand");
                }
            }
        }
    }

    async fn reload(&mut self) -> Result<(), LoadError> {
        let path = self.path.clone();
        let (files, read) = spawn_blocking(move || {
            let mut files = BTreeSet::from([path.clone()]);
            let before = stamps(&files);
            let read = read(&path, &mut files);
            // A file that changed while it was read is read again: its stamp is from before.
            let mut all = stamps(&files);
            all.extend(before);
            (all, read)
        })
        .await?;
        self.stamps = files;
        let loaded = read?;
        self.memory.with(|store, _| {
            for (digest, content) in loaded.artifacts {
                store.put_artifact(digest, content)?;
            }
            for (facts, content) in loaded.cards {
                store.put_card(facts, content)?;
            }
            Ok(store.set_static(loaded.instances)?)
        })
    }
}

struct Loaded {
    instances: Vec<Instance>,
    cards: Vec<(CardFacts, Bytes)>,
    artifacts: Vec<(Digest, Bytes)>,
}

/// Watches the directory, because editors and mounted configuration replace the file rather than write into it.
fn watch(path: &Path, told: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |_| {
        // One waiting message says all.
        let _ = told.try_send(());
    })?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(directory, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

fn stamps<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Stamps {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.into_iter().map(|path| (path.clone(), stamp(path))).collect()
}

/// Reads the file and what it names; `files` gets the path of each.
fn read(path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<Loaded, LoadError> {
    let text = String::from_utf8_lossy(&read_file(path, files)?).into_owned();
    let listing = listing::parse(&text)?;
    let wrong = |offset, problem: String| ListingError { line: listing::line(&text, offset), problem };
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut loaded = Loaded { instances: Vec::new(), cards: Vec::new(), artifacts: Vec::new() };
    let mut digests: BTreeMap<&str, Digest> = BTreeMap::new();
    for (name, listed) in &listing.cards {
        let offset = listed.span().start;
        let content = match &listed.get_ref().file {
            Some(file) => {
                for path in [&listed.get_ref().tokenizer, &listed.get_ref().template] {
                    artifact(path, directory, files, &mut loaded.artifacts)?;
                }
                Bytes::from(read_file(&directory.join(file), files)?)
            }
            None => describe(listed.get_ref(), directory, files, &mut loaded.artifacts)
                .map_err(|error| error.at(&wrong, offset))?,
        };
        let facts = card::read(Digest::of(&content), &content)
            .map_err(|error| LoadError::Card { line: listing::line(&text, offset), error })?;
        digests.insert(name, facts.digest);
        loaded.cards.push((facts, content));
    }
    let mut ids = BTreeSet::new();
    for listed in &listing.instances {
        let (offset, listed) = (listed.span().start, listed.get_ref());
        let id = listed.id.get_ref().parse().ok().filter(|id| *id != InstanceId(0));
        let id: InstanceId = id.ok_or_else(|| {
            wrong(
                listed.id.span().start,
                format!("id {:?} is not 16 hex digits, not all 0", listed.id.get_ref()),
            )
        })?;
        if !ids.insert(id) {
            return Err(wrong(listed.id.span().start, format!("id {id} is listed twice")).into());
        }
        if listed.addresses.is_empty() {
            return Err(wrong(offset, format!("instance {id} has no addresses")).into());
        }
        let known = |name: &toml::Spanned<String>| {
            let digest = digests.get(name.get_ref().as_str()).copied();
            digest.ok_or_else(|| wrong(name.span().start, format!("there is no card {:?}", name.get_ref())))
        };
        loaded.instances.push(Instance {
            id,
            namespace: listed.namespace.clone().map(Namespace).unwrap_or_default(),
            component: listed.component.into(),
            addresses: listed.addresses.clone(),
            card: listed.card.as_ref().map(known).transpose()?,
            status: listed.status.into(),
            epoch: LeaseEpoch::default(),
            labels: listed.labels.clone(),
            boot_id: listed.boot_id.clone(),
        });
    }
    Ok(loaded)
}

/// Why a card could not be made from its fields.
enum DescribeError {
    Digest { offset: Option<usize> },
    File(LoadError),
}

impl DescribeError {
    fn at(self, wrong: &dyn Fn(usize, String) -> ListingError, card: usize) -> LoadError {
        match self {
            Self::File(error) => error,
            Self::Digest { offset } => {
                wrong(offset.unwrap_or(card), "model_digest is not an even number of hex digits".to_owned())
                    .into()
            }
        }
    }
}

/// The bytes of the card that the fields describe.
fn describe(
    listed: &ListedCard,
    directory: &Path,
    files: &mut BTreeSet<PathBuf>,
    artifacts: &mut Vec<(Digest, Bytes)>,
) -> Result<Bytes, DescribeError> {
    let offset = listed.model_digest.as_ref().map(|digest| digest.span().start);
    let model = listed.model_digest.as_ref().and_then(|digest| hex(digest.get_ref()));
    let model = model.ok_or(DescribeError::Digest { offset })?;
    let mut artifact = |path| artifact(path, directory, files, artifacts).map_err(DescribeError::File);
    let (tokenizer, template) = (artifact(&listed.tokenizer)?, artifact(&listed.template)?);
    Ok(listed.clone().into_card(model, tokenizer, template).encode_to_vec().into())
}

/// Adds the file, if there is one, to the artifacts; its digest, or no bytes.
fn artifact(
    path: &Option<PathBuf>,
    directory: &Path,
    files: &mut BTreeSet<PathBuf>,
    artifacts: &mut Vec<(Digest, Bytes)>,
) -> Result<Vec<u8>, LoadError> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let content = read_file(&directory.join(path), files)?;
    let digest = Digest::of(&content);
    artifacts.push((digest, content.into()));
    Ok(digest.0.to_vec())
}

fn read_file(path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<Vec<u8>, LoadError> {
    use std::io::Read as _;
    files.insert(path.to_owned());
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let mut content = Vec::new();
    let limit = MAX_ARTIFACT_BYTES as u64;
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let read = file.take(limit + 1).read_to_end(&mut content).map_err(unreadable)?;
    if read as u64 > limit {
        return Err(unreadable(std::io::Error::other(format!("it has more than {limit} bytes"))));
    }
    Ok(content)
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: &u8| char::from(*digit).to_digit(16).map(|it| it as u8);
    digits.chunks(2).map(|pair| Some(nibble(&pair[0])? << 4 | nibble(&pair[1])?)).collect()
}
