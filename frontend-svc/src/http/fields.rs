//! Reads the fields of a JSON body one by one, so that a wrong one is named. Fields that nobody reads are ignored, as OpenAI and vLLM do.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::domain::params::{Draft, Invalid};

/// The fields of a body that were not read yet. `null` is absent.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body. Errors that concern no field have no parameter.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let text = std::str::from_utf8(body).map_err(|error| {
            Invalid::new("", format!("the body is not UTF-8 from byte {} on", error.valid_up_to()))
        })?;
        match serde_json::from_str(text) {
            // Which one counts differs from reader to reader, and some of them stand between the client and here.
            Ok(Object { twice: Some(name), .. }) => Err(Invalid::new(name, "is given twice")),
            Ok(Object { fields, twice: None }) => Ok(Self(fields)),
            Err(error) if error.is_data() => Err(Invalid::new("", "the body is not a JSON object")),
            Err(error) => Err(Invalid::new("", format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The value of `name`.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Invalid> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    /// A string that must be there.
    pub fn required(&mut self, name: &str) -> Result<String, Invalid> {
        match self.text(name)? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(Invalid::new(name, "must not be empty")),
            None => Err(Invalid::new(name, "is required")),
        }
    }

    /// A boolean.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Invalid> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(name, "a boolean", &other)),
        }
    }

    /// A number.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Invalid> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| wrong(name, "a number", &value)),
        }
    }

    /// An integer.
    pub fn integer(&mut self, name: &str) -> Result<Option<i128>, Invalid> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => integer(&value).map(Some).ok_or_else(|| wrong(name, "an integer", &value)),
        }
    }

    /// A list of integers.
    pub fn integers(&mut self, name: &str) -> Result<Vec<i128>, Invalid> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        let Value::Array(items) = &value else { return Err(wrong(name, "a list of integers", &value)) };
        let each = |item| integer(item).ok_or_else(|| wrong(name, "a list of integers", item));
        items.iter().map(each).collect()
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Invalid> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(fields)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// Refuses `name` unless it is absent or empty: what is not supported must not be ignored silently.
    pub fn refuse(&mut self, name: &str) -> Result<(), Invalid> {
        let given = self.take(name).is_some_and(|value| match value {
            Value::Bool(on) => on,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        });
        if given { Err(Invalid::new(name, "is not supported by this server")) } else { Ok(()) }
    }

    /// The parameters that both endpoints have.
    pub fn draft(&mut self) -> Result<Draft, Invalid> {
        for name in UNSUPPORTED {
            self.refuse(name)?;
        }
        Ok(Draft {
            n: self.integer("n")?,
            temperature: self.number("temperature")?,
            top_p: self.number("top_p")?,
            top_k: self.integer("top_k")?,
            min_p: self.number("min_p")?,
            presence_penalty: self.number("presence_penalty")?,
            frequency_penalty: self.number("frequency_penalty")?,
            repetition_penalty: self.number("repetition_penalty")?,
            logit_bias: self.bias()?,
            seed: self.integer("seed")?,
            max_tokens: self.integer("max_tokens")?,
            max_tokens_name: "max_tokens",
            min_tokens: self.integer("min_tokens")?,
            stop_token_ids: self.integers("stop_token_ids")?,
            ignore_eos: self.flag("ignore_eos")?.unwrap_or(false),
            stop: self.stop()?,
            cache_salt: self.text("cache_salt")?.unwrap_or_default(),
            logprobs: None,
            logprobs_name: "logprobs",
        })
    }

    /// `stream` and `stream_options.include_usage`.
    pub fn streaming(&mut self) -> Result<Streaming, Invalid> {
        let on = self.flag("stream")?.unwrap_or(false);
        let Some(options) = self.object("stream_options")? else { return Ok(Streaming { on, usage: false }) };
        if !on {
            return Err(Invalid::new("stream_options", "is only allowed when stream is true"));
        }
        let usage = match options.get("include_usage") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(usage)) => *usage,
            Some(other) => return Err(wrong("stream_options.include_usage", "a boolean", other)),
        };
        Ok(Streaming { on, usage })
    }

    fn bias(&mut self) -> Result<Vec<(String, f64)>, Invalid> {
        let entries = self.object("logit_bias")?.unwrap_or_default();
        let each = |(token, bias): (String, Value)| match bias.as_f64() {
            Some(bias) => Ok((token, bias)),
            None => Err(wrong(&format!("logit_bias.{token}"), "a number", &bias)),
        };
        entries.into_iter().map(each).collect()
    }

    fn stop(&mut self) -> Result<Vec<String>, Invalid> {
        match self.take("stop") {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text),
                    other => Err(wrong("stop", "a string or a list of strings", &other)),
                })
                .collect(),
            Some(other) => Err(wrong("stop", "a string or a list of strings", &other)),
        }
    }
}

/// A JSON object, and the first name in it that came again.
struct Object {
    fields: Map<String, Value>,
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Object, A::Error> {
        let mut object = Object { fields: Map::new(), twice: None };
        while let Some((name, value)) = entries.next_entry::<String, Value>()? {
            if object.fields.contains_key(&name) {
                object.twice.get_or_insert(name);
            } else {
                object.fields.insert(name, value);
            }
        }
        Ok(object)
    }
}

/// Whether and how an answer is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streaming {
    /// Events instead of one object.
    pub on: bool,
    /// An event with the usage before the end.
    pub usage: bool,
}

/// Parameters that change the answer and that nobody here honours.
const UNSUPPORTED: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "prompt_logprobs",
    "structured_outputs",
    "use_beam_search",
];

/// `name` is not what it should be.
pub fn wrong(name: &str, expected: &str, given: &Value) -> Invalid {
    let kind = match given {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Invalid::new(name, format!("must be {expected}, not {kind}"))
}

/// An integer, also when it is written as `3.0`.
pub fn integer(value: &Value) -> Option<i128> {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    whole.or_else(|| value.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < 1e18).map(|it| it as i128))
}
