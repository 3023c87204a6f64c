//! What is behind a URL: model, context, tokenizer, template, and how the engine wants to be asked. It is waited for while it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::client::{CallError, EngineClient};
use super::engine::Found;
use super::files::{self, FileError, ModelFiles};
use super::probe::{self, ProbeError};
use super::vocabulary::JsonVocabulary;
use crate::domain::openai::dialect::Dialect;
use crate::domain::openai::facts::{self, ListError, Listed, Props, Template};
use crate::domain::openai::load::EngineLoad;

/// Longest answer to a question about the model.
pub(super) const MAX_ANSWER: usize = 8 << 20;
/// Longest wait for one.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at an engine that is starting.
const PAUSE: Duration = Duration::from_millis(500);

/// What the configuration says of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its kind; none: as it calls itself.
    pub dialect: Option<Dialect>,
    /// Which of its models; none: the only one.
    pub model: Option<String>,
    /// Its tokenizer: a GGUF file, a `tokenizer.json`, a folder that has one.
    pub tokenizer: Option<PathBuf>,
    /// Its chat template: Jinja, or a `tokenizer_config.json`.
    pub template: Option<PathBuf>,
    /// Longest sequence in tokens; none: as it says.
    pub context_length: Option<usize>,
    /// How long it may take to answer.
    pub start: Duration,
}

/// Why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// It gives no answer.
    #[error("the engine at {url} does not answer: {problem}: is it running, and is the URL right?")]
    Away {
        /// Where.
        url: String,
        /// What was tried and how it failed.
        problem: String,
    },
    /// It does not say what it serves.
    #[error("the engine at {url}: {source}")]
    Models {
        /// Where.
        url: String,
        /// Why.
        source: ListError,
    },
    /// Text cannot be turned into its tokens.
    #[error(
        "no tokenizer for {model}: the engine does not hand its own out, and this machine has no files of it. Set openai.tokenizer \
         (armature up: --backend-tokenizer) to its GGUF file, its tokenizer.json, or the folder that has it"
    )]
    NoTokenizer {
        /// Its name.
        model: String,
    },
    /// A file is no help.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tokenizer cannot be used.
    #[error("the tokenizer of {model} is not usable: {problem}")]
    Tokenizer {
        /// Its name.
        model: String,
        /// Why.
        problem: String,
    },
    /// How long a sequence may be is not known.
    #[error(
        "the engine at {url} does not say how long a sequence may be: set openai.context_length to what it was started with"
    )]
    NoContext {
        /// Where.
        url: String,
    },
    /// It does not generate.
    #[error("the engine at {url} cannot be used: {source}")]
    Probe {
        /// Where.
        url: String,
        /// Why.
        source: ProbeError,
    },
}

impl DiscoverError {
    /// Whether it may be otherwise in a moment.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Away { .. } => true,
            Self::Probe { source, .. } => match source {
                ProbeError::Call(_) => true,
                ProbeError::Refused { status, .. } => status.is_server_error(),
                ProbeError::Malformed => false,
            },
            Self::Models { .. }
            | Self::NoTokenizer { .. }
            | Self::File(_)
            | Self::Tokenizer { .. }
            | Self::NoContext { .. } => false,
        }
    }
}

/// Finds out what is there, and waits for an engine that is starting for as long as `settings` say.
///
/// # Errors
/// [`DiscoverError`], with what to do.
pub async fn discover(client: &EngineClient, settings: &Settings) -> Result<Found, DiscoverError> {
    let until = Instant::now() + settings.start;
    let mut told = false;
    loop {
        let error = match look(client, settings).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if !error.may_pass() || Instant::now() + PAUSE > until {
            return Err(error);
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(%error, patience = ?settings.start, "waiting for the engine");
        }
        sleep(PAUSE).await;
    }
}

/// Which model the engine serves.
///
/// # Errors
/// [`DiscoverError`].
pub(super) async fn listed(client: &EngineClient, wanted: Option<&str>) -> Result<Listed, DiscoverError> {
    let answer = get(client, "/v1/models").await?;
    let source = |source| DiscoverError::Models { url: client.url().to_string(), source };
    facts::listed(&answer, wanted).map_err(source)
}

/// The answer to GET, when it is 200.
async fn get(client: &EngineClient, path: &str) -> Result<bytes::Bytes, DiscoverError> {
    let away = |problem: String| DiscoverError::Away {
        url: client.url().to_string(),
        problem: format!("GET {path}: {problem}"),
    };
    match client.get(path, MAX_ANSWER, PATIENCE).await {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((status, body)) => Err(away(format!("{status}: {}", super::call::said(&body)))),
        Err(error) => Err(away(CallError::to_string(&error))),
    }
}

async fn look(client: &EngineClient, settings: &Settings) -> Result<Found, DiscoverError> {
    let listed = listed(client, settings.model.as_deref()).await?;
    let dialect = settings.dialect.unwrap_or(listed.dialect);
    let props = match dialect {
        Dialect::LlamaCpp => Props::read(&get(client, "/props").await?),
        _ => Props::default(),
    };
    let files = model_files(settings, &listed, &props)?;
    let unusable = |problem: String| DiscoverError::Tokenizer { model: listed.id.clone(), problem };
    let vocabulary = JsonVocabulary::parse(&files.tokenizer).map_err(|error| unusable(error.to_string()))?;
    let context_length = settings
        .context_length
        .or(listed.context_length)
        .or(props.context_length())
        .or(files.context_length)
        .ok_or_else(|| DiscoverError::NoContext { url: client.url().to_string() })?;
    let template = template(settings, &props, &files)?;
    if template.chat_template.is_none() {
        tracing::warn!(
            model = listed.id,
            "no chat template is known: only completions are served; openai.template names one"
        );
    }
    let url = || client.url().to_string();
    let abilities = probe::abilities(client, dialect, &listed.id, &vocabulary).await;
    let abilities = abilities.map_err(|source| DiscoverError::Probe { url: url(), source })?;
    let token = |name: &Option<String>| name.as_deref().and_then(|name| vocabulary.id(name));
    let mut eos = files.end_tokens.clone();
    eos.extend(token(&template.eos_token).filter(|id| !eos.contains(id)));
    let of_props = Some(props.total_slots).filter(|slots| *slots > 0);
    let kv_tokens = match load(client, dialect).await.and_then(|load| load.kv_tokens) {
        None => of_props.map(|slots| (slots * context_length) as u64),
        known => known,
    };
    Ok(Found {
        served_name: facts::served_name(&listed.id),
        model: listed.id,
        abilities,
        context_length,
        vocab_size: vocabulary.size(),
        bos: token(&template.bos_token),
        eos,
        tokenizer: files.tokenizer,
        template: serde_json::to_vec(&template).unwrap_or_default(),
        vocabulary: Arc::new(vocabulary),
        slots: of_props,
        kv_tokens,
    })
}

/// The engine's own numbers; `None` when it has no metrics page.
pub(super) async fn load(client: &EngineClient, dialect: Dialect) -> Option<EngineLoad> {
    if dialect == Dialect::OpenAi {
        return None;
    }
    match client.get("/metrics", MAX_ANSWER, PATIENCE).await {
        Ok((StatusCode::OK, page)) => EngineLoad::read(std::str::from_utf8(&page).ok()?, dialect),
        _ => None,
    }
}

fn model_files(settings: &Settings, listed: &Listed, props: &Props) -> Result<ModelFiles, DiscoverError> {
    if let Some(path) = &settings.tokenizer {
        return Ok(files::model(path)?);
    }
    let of_engine = [props.model_path.as_str(), listed.root.as_deref().unwrap_or_default(), &listed.id];
    let found = of_engine.into_iter().filter(|root| !root.is_empty()).find_map(files::local);
    let found = found.ok_or_else(|| DiscoverError::NoTokenizer { model: listed.id.clone() })?;
    tracing::info!(path = %found.display(), "tokenizer of the engine's model");
    Ok(files::model(&found)?)
}

/// The configured template, before the engine's, before that of the files.
fn template(settings: &Settings, props: &Props, files: &ModelFiles) -> Result<Template, DiscoverError> {
    let configured = settings.template.as_deref().map(files::template).transpose()?.unwrap_or_default();
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let of_engine = Template {
        chat_template: some(&props.chat_template),
        bos_token: some(&props.bos_token),
        eos_token: some(&props.eos_token),
        add_bos: false,
    };
    Ok(configured.or(of_engine).or(files.template.clone()))
}
