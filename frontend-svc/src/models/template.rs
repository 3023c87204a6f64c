//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it, in bounded time and space.

use std::io;

use jiff::ZonedDateTime;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Deserialize;

use super::template_json::tojson;
use crate::domain::prompt::Chat;

/// Instructions of one rendering: a loop over a hundred thousand messages fits, an endless one does not.
const FUEL: u64 = 5_000_000;
/// Calls within calls.
const DEPTH: usize = 100;
/// Longest rendered prompt in bytes, far above what any context length takes.
const MAX_PROMPT_BYTES: usize = 64 * 1024 * 1024;
/// Name of the one template of an environment.
const NAME: &str = "chat_template";

/// A model's chat template and the special tokens it speaks of.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Option<Environment<'static>>,
    bos_token: String,
    eos_token: String,
    add_bos: bool,
}

/// The artifact, `template.json`.
#[derive(Debug, Deserialize)]
struct Artifact {
    #[serde(default)]
    chat_template: Option<String>,
    #[serde(default)]
    bos_token: Option<String>,
    #[serde(default)]
    eos_token: Option<String>,
    #[serde(default)]
    add_bos: bool,
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The model is for completions only.
    #[error("this model has no chat template: use /v1/completions")]
    NoTemplate,
    /// The template refuses the conversation, or cannot deal with it.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
}

/// An artifact that is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// Not the JSON that it should be.
    #[error("template artifact: {0}")]
    Json(#[from] serde_json::Error),
    /// The template does not compile.
    #[error("chat template: {0}")]
    Syntax(#[from] Error),
}

impl ChatTemplate {
    /// Reads and compiles the artifact.
    pub fn parse(artifact: &[u8]) -> Result<Self, TemplateError> {
        let artifact: Artifact = serde_json::from_slice(artifact)?;
        let environment = artifact.chat_template.filter(|text| !text.is_empty()).map(compile).transpose()?;
        Ok(Self {
            environment,
            bos_token: artifact.bos_token.unwrap_or_default(),
            eos_token: artifact.eos_token.unwrap_or_default(),
            add_bos: artifact.add_bos,
        })
    }

    /// The token that every prompt begins with, if the model wants one.
    pub fn required_bos(&self) -> Option<&str> {
        (self.add_bos && !self.bos_token.is_empty()).then_some(&self.bos_token)
    }

    /// The prompt of a conversation, held at `now`.
    pub fn render(&self, chat: &Chat, now: ZonedDateTime) -> Result<String, RenderError> {
        let environment = self.environment.as_ref().ok_or(RenderError::NoTemplate)?;
        let refused = |error: Error| RenderError::Refused(describe(&error));
        let template = environment.get_template(NAME).map_err(refused)?;
        let own = context! {
            messages => Value::from_serialize(&chat.messages),
            add_generation_prompt => chat.add_generation_prompt,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
            strftime_now => Value::from_function(move |format: String| strftime(&format, &now)),
        };
        let variables = Value::from_serialize(&chat.variables);
        let mut prompt = Bounded::default();
        template.render_captured_to(context! { ..own, ..variables }, &mut prompt).map_err(refused)?;
        String::from_utf8(prompt.0).map_err(|error| RenderError::Refused(error.to_string()))
    }
}

fn compile(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

fn strftime(format: &str, now: &ZonedDateTime) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, "strftime_now").with_source(error))
}

fn describe(error: &Error) -> String {
    error.detail().map_or_else(|| error.to_string(), str::to_owned)
}

/// A prompt that does not grow beyond [`MAX_PROMPT_BYTES`].
#[derive(Default)]
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other(format!("the prompt is longer than {MAX_PROMPT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::prompt::Message;

    fn chat(turns: &[(&str, &str)]) -> Chat {
        let message = |(role, content): &(&str, &str)| Message {
            role: (*role).into(),
            content: (*content).into(),
            name: None,
        };
        Chat {
            messages: turns.iter().map(message).collect(),
            add_generation_prompt: true,
            variables: serde_json::Map::new(),
        }
    }

    fn now() -> ZonedDateTime {
        let timestamp: jiff::Timestamp = "2026-03-05T12:00:00Z".parse().unwrap();
        timestamp.to_zoned_datetime(jiff::tz::TimeZone::UTC)
    }

    fn render(source: &str, chat: &Chat) -> Result<String, RenderError> {
        let artifact = serde_json::json!({"chat_template": source, "bos_token": "<s>", "eos_token": "</s>"});
        ChatTemplate::parse(artifact.to_string().as_bytes()).unwrap().render(chat, now())
    }

    const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn smollm2_renders_as_hugging_face_does() {
        let prompt = render(SMOLLM2, &chat(&[("system", "Be kind."), ("user", "Hi")])).unwrap();
        assert_eq!(
            prompt,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn blocks_leave_no_lines_and_python_methods_work() {
        let source = "{%- for m in messages %}\n    {%- if m.role.startswith('us') %}\n{{ bos_token + m['content'].strip() }}\n    {% endif %}\n{% endfor %}";
        assert_eq!(render(source, &chat(&[("user", " a "), ("system", "b")])).unwrap(), "<s>a\n");
    }

    #[test]
    fn raise_exception_is_told_to_the_client() {
        let refused =
            render("{{ raise_exception('roles must alternate') }}", &chat(&[("user", "x")])).unwrap_err();
        assert!(refused.to_string().ends_with("roles must alternate"), "{refused}");
    }

    #[test]
    fn json_is_pythons() {
        let mut chat = chat(&[("user", "x")]);
        chat.variables.insert("it".into(), serde_json::json!({"b": [1, "é<&>"], "a": null}));
        assert_eq!(render("{{ it | tojson }}", &chat).unwrap(), r#"{"b": [1, "é<&>"], "a": null}"#);
        assert_eq!(render("{{ [1] | tojson(indent=2) }}", &chat).unwrap(), "[\n  1\n]");
    }

    #[test]
    fn time_is_the_one_given() {
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", &chat(&[("user", "x")])).unwrap(), "05 Mar 2026");
    }

    #[test]
    fn variables_cannot_replace_the_conversation() {
        let mut chat = chat(&[("user", "x")]);
        chat.variables.insert("messages".into(), serde_json::json!([]));
        assert_eq!(render("{{ messages | length }}", &chat).unwrap(), "1");
    }

    #[test]
    fn an_endless_template_runs_dry() {
        let source = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(render(source, &chat(&[("user", "x")])).is_err());
    }

    #[test]
    fn a_broken_template_is_refused_and_a_missing_one_is_named() {
        assert!(ChatTemplate::parse(br#"{"chat_template": "{% if %}"}"#).is_err());
        assert!(ChatTemplate::parse(b"{").is_err());
        let none = ChatTemplate::parse(b"{}").unwrap();
        assert!(matches!(none.render(&chat(&[("user", "x")]), now()), Err(RenderError::NoTemplate)));
    }
}
