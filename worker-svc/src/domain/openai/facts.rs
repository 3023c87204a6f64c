//! What an engine says of its model, and where that comes from when it says nothing.

use serde::Deserialize;

use super::dialect::Dialect;

/// A model by `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// How the engine calls it.
    pub id: String,
    /// Kind of the engine.
    pub dialect: Dialect,
    /// Longest sequence in tokens.
    pub context_length: Option<usize>,
    /// Where its files are on the engine's machine, or its name at a hub.
    pub root: Option<String>,
}

/// The engine's list of models does not say what is served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Not a list of models.
    #[error("/v1/models is no list of models: is this an OpenAI-compatible engine?")]
    Malformed,
    /// It serves nothing.
    #[error("/v1/models lists no model")]
    Empty,
    /// It serves several.
    #[error("/v1/models lists {0:?}: say which one with openai.model")]
    Several(Vec<String>),
    /// It does not serve the one that is configured.
    #[error("/v1/models lists {listed:?} and not {wanted:?}, which openai.model names")]
    Absent {
        /// The one wanted.
        wanted: String,
        /// Those there.
        listed: Vec<String>,
    },
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    owned_by: String,
    #[serde(default)]
    max_model_len: Option<usize>,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    parent: Option<String>,
}

/// Reads the answer of `/v1/models`: the model `wanted`, or the only one. Adapters, which have a parent, are passed over unless wanted.
///
/// # Errors
/// [`ListError`].
pub fn listed(answer: &[u8], wanted: Option<&str>) -> Result<Listed, ListError> {
    let models: Models = serde_json::from_slice(answer).map_err(|_| ListError::Malformed)?;
    let names = || models.data.iter().map(|model| model.id.clone()).collect::<Vec<_>>();
    let of_own: Vec<&Model> = models.data.iter().filter(|model| model.parent.is_none()).collect();
    let model = match (wanted, of_own.as_slice()) {
        (Some(wanted), _) => {
            let found = models.data.iter().find(|model| model.id == wanted);
            found.ok_or_else(|| ListError::Absent { wanted: wanted.to_owned(), listed: names() })?
        }
        (None, []) => return Err(ListError::Empty),
        (None, [only]) => only,
        (None, _) => return Err(ListError::Several(names())),
    };
    Ok(Listed {
        id: model.id.clone(),
        dialect: Dialect::of_owner(&model.owned_by),
        context_length: model.max_model_len,
        root: model.root.clone().filter(|root| !root.is_empty()),
    })
}

/// The name to serve it under: a path's last part, without what marks a file.
pub fn served_name(id: &str) -> String {
    let is_path = id.starts_with('/') || id.starts_with('.') || id.ends_with(".gguf");
    let name = if is_path { id.trim_end_matches('/').rsplit('/').next().unwrap_or(id) } else { id };
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// llama.cpp's `/props`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Props {
    /// The model file on the engine's machine.
    pub model_path: String,
    /// Sequences at once.
    pub total_slots: usize,
    /// The model's chat template.
    pub chat_template: String,
    /// Text of its begin token.
    pub bos_token: String,
    /// Text of its end token.
    pub eos_token: String,
    default_generation_settings: GenerationSettings,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
struct GenerationSettings {
    n_ctx: usize,
}

impl Props {
    /// Reads the answer of `/props`; nothing is known when it is none.
    pub fn read(answer: &[u8]) -> Self {
        serde_json::from_slice(answer).unwrap_or_default()
    }

    /// Longest sequence in tokens.
    pub fn context_length(&self) -> Option<usize> {
        Some(self.default_generation_settings.n_ctx).filter(|tokens| *tokens > 0)
    }
}

/// The template artifact: what a frontend needs besides the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, Deserialize)]
pub struct Template {
    /// Jinja source.
    pub chat_template: Option<String>,
    /// Text of the begin token.
    pub bos_token: Option<String>,
    /// Text of the end token.
    pub eos_token: Option<String>,
    /// Every prompt begins with the begin token.
    pub add_bos: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenizerConfig {
    chat_template: serde_json::Value,
    bos_token: serde_json::Value,
    eos_token: serde_json::Value,
    add_bos_token: bool,
}

impl Template {
    /// Reads Hugging Face's `tokenizer_config.json`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_tokenizer_config(config: &[u8]) -> Result<Self, serde_json::Error> {
        let config: TokenizerConfig = serde_json::from_slice(config)?;
        // A token is its text, or an object that has it; of several templates the default one is for conversations.
        let text = |value: &serde_json::Value| {
            value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
        };
        let named = |value: &serde_json::Value| {
            let list = value.as_array()?;
            let default = list.iter().find(|it| it.get("name").is_some_and(|name| name == "default"))?;
            Some(default.get("template")?.as_str()?.to_owned())
        };
        Ok(Self {
            chat_template: text(&config.chat_template).or_else(|| named(&config.chat_template)),
            bos_token: text(&config.bos_token),
            eos_token: text(&config.eos_token),
            add_bos: config.add_bos_token,
        })
    }

    /// The same, with what it lacks from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            chat_template: self.chat_template.or(other.chat_template),
            bos_token: self.bos_token.or(other.bos_token),
            eos_token: self.eos_token.or(other.eos_token),
            add_bos: self.add_bos || other.add_bos,
        }
    }
}

/// End tokens by Hugging Face's `generation_config.json`: a number, or several.
pub fn end_tokens(generation_config: &[u8]) -> Vec<u32> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ids {
        One(u32),
        Several(Vec<u32>),
    }
    #[derive(Deserialize)]
    struct Config {
        eos_token_id: Option<Ids>,
    }
    match serde_json::from_slice(generation_config) {
        Ok(Config { eos_token_id: Some(Ids::One(id)) }) => vec![id],
        Ok(Config { eos_token_id: Some(Ids::Several(ids)) }) => ids,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_model_is_the_one_wanted_or_the_only_one() {
        let answer = br#"{"object":"list","data":[
            {"id":"org/model","object":"model","owned_by":"vllm","root":"/models/m","parent":null,"max_model_len":4096},
            {"id":"lora","owned_by":"vllm","root":"/models/l","parent":"org/model"}]}"#;
        let expected = Listed {
            id: "org/model".into(),
            dialect: Dialect::Vllm,
            context_length: Some(4096),
            root: Some("/models/m".into()),
        };
        assert_eq!(listed(answer, None), Ok(expected));
        assert_eq!(listed(answer, Some("lora")).unwrap().id, "lora");
        let absent = listed(answer, Some("other")).unwrap_err().to_string();
        assert!(absent.contains("other") && absent.contains("org/model"), "{absent}");
        let several = listed(br#"{"data":[{"id":"a"},{"id":"b"}]}"#, None).unwrap_err().to_string();
        assert!(several.contains("openai.model"), "{several}");
        assert_eq!(listed(br#"{"data":[]}"#, None), Err(ListError::Empty));
        assert_eq!(listed(b"<html>", None), Err(ListError::Malformed));
    }

    #[test]
    fn a_path_is_served_under_its_last_part() {
        assert_eq!(served_name("/models/smollm2-135m.gguf"), "smollm2-135m");
        assert_eq!(served_name("org/model"), "org/model");
        assert_eq!(served_name("/models/qwen/"), "qwen");
    }

    #[test]
    fn llama_cpp_says_context_slots_and_template() {
        let props = Props::read(
            br#"{"default_generation_settings":{"n_ctx":2048,"params":{}},"total_slots":4,"model_path":"/m.gguf","chat_template":"{{x}}","bos_token":"<s>","eos_token":"</s>"}"#,
        );
        assert_eq!((props.context_length(), props.total_slots), (Some(2048), 4));
        assert_eq!((props.model_path.as_str(), props.chat_template.as_str()), ("/m.gguf", "{{x}}"));
        assert_eq!(Props::read(b"nothing"), Props::default());
    }

    #[test]
    fn a_tokenizer_config_says_templates_and_tokens_in_all_its_shapes() {
        let plain = br#"{"chat_template":"{{a}}","bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true}"#;
        let expected = Template {
            chat_template: Some("{{a}}".into()),
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            add_bos: true,
        };
        assert_eq!(Template::of_tokenizer_config(plain).unwrap(), expected);
        let several = br#"{"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d"}],"bos_token":null}"#;
        let template = Template::of_tokenizer_config(several).unwrap();
        assert_eq!((template.chat_template.as_deref(), &template.bos_token), (Some("d"), &None));
        assert_eq!(template.or(expected).eos_token.as_deref(), Some("</s>"));
        assert_eq!(end_tokens(br#"{"eos_token_id":[1,2]}"#), [1, 2]);
        assert_eq!(end_tokens(br#"{"eos_token_id":7}"#), [7]);
        assert_eq!(end_tokens(b"{}"), Vec::<u32>::new());
    }
}
