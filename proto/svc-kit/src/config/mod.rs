//! Configuration in four layers, the later one wins: defaults, a TOML file, the environment,
//! flags.
//!
//! A configuration type derives `Serialize` and `Deserialize` with
//! `#[serde(default, deny_unknown_fields)]` on every struct; its `Default` is the first layer.
//! The environment key of `listen.port` of the worker is `ARMATURE_WORKER__LISTEN__PORT`; flags
//! are `--set listen.port=7500` and whatever typed flags the service adds. Text from the
//! environment and from `--set` is read as TOML-like values (`true`, `7`, `[a, b]`), except where
//! the default is text: there it is taken as it stands.

mod args;
mod error;
mod table;

pub use args::{ConfigArgs, Flags};
pub use error::ConfigError;
pub use table::defaults_table;

use std::io::Write as _;
use std::path::Path;

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the configuration of `service` (`worker`, `router`, ...).
///
/// `environment` is usually `std::env::vars()`; it is an argument so that tests need none.
pub fn load<T>(
    service: &str,
    args: &ConfigArgs,
    flags: Flags,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError>
where
    T: Serialize + DeserializeOwned + Default,
{
    let defaults = Value::serialize(T::default()).map_err(ConfigError::from_figment)?;
    let mut figment = Figment::new();
    if let Some(path) = &args.config {
        figment = figment.merge(toml_file(path)?);
    }
    let prefix = environment_prefix(service);
    // Sorted, so that of A and A__B always the same one wins.
    let mut variables: Vec<_> =
        environment.into_iter().filter(|(name, _)| name.to_ascii_uppercase().starts_with(&prefix)).collect();
    variables.sort();
    for (name, text) in variables {
        let key = name[prefix.len()..].to_ascii_lowercase().replace("__", ".");
        figment = figment.merge(One::text(format!("environment variable {name}"), &key, &text, &defaults)?);
    }
    for assignment in &args.set {
        let (key, text) = assignment
            .split_once('=')
            .filter(|(key, _)| !key.trim().is_empty())
            .ok_or_else(|| ConfigError::Assignment(assignment.clone()))?;
        figment =
            figment.merge(One::text(format!("flag --set {}", key.trim()), key.trim(), text, &defaults)?);
    }
    for (key, value) in flags.into_values()? {
        figment = figment.merge(One { origin: format!("flag for {key}"), key, value });
    }
    extract(&figment)
}

/// Reads a complete or partial TOML text over the defaults; what a test of the sample file calls.
pub fn parse_toml<T>(text: &str) -> Result<T, ConfigError>
where
    T: DeserializeOwned,
{
    extract(&Figment::new().merge(Toml::string(text)))
}

/// The TOML text of a configuration, for `--print-config`: what [`load`] reads back, except that
/// secrets are redacted.
pub fn to_toml<T: Serialize>(config: &T) -> Result<String, ConfigError> {
    toml::to_string_pretty(config).map_err(|error| ConfigError::Print(error.to_string()))
}

/// Writes a configuration to standard output, for `--print-config`.
pub fn print<T: Serialize>(config: &T) -> Result<(), ConfigError> {
    let text = to_toml(config)?;
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| ConfigError::Print(error.to_string()))
}

/// The prefix of the environment variables of `service`: `ARMATURE_<SERVICE>__`.
pub fn environment_prefix(service: &str) -> String {
    format!("ARMATURE_{}__", service.to_ascii_uppercase().replace('-', "_"))
}

fn extract<T: DeserializeOwned>(figment: &Figment) -> Result<T, ConfigError> {
    figment.extract().map_err(|error| ConfigError::explain(error, figment))
}

fn toml_file(path: &Path) -> Result<figment::providers::Data<Toml>, ConfigError> {
    // figment takes a missing file for an empty one, which would hide a typing error.
    if let Err(source) = std::fs::File::open(path) {
        return Err(ConfigError::File { path: path.to_owned(), source });
    }
    Ok(Toml::file_exact(path))
}

/// One key from one named place, so that an error can say which.
struct One {
    origin: String,
    key: String,
    value: Value,
}

impl One {
    fn text(origin: String, key: &str, text: &str, defaults: &Value) -> Result<Self, ConfigError> {
        let is_text = defaults.find_ref(key).is_some_and(|value| value.as_str().is_some());
        let value = if is_text {
            Value::from(text)
        } else {
            text.parse().map_err(|error: std::convert::Infallible| match error {})?
        };
        Ok(Self { origin, key: key.to_owned(), value })
    }
}

impl Provider for One {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::default(&self.key, &self.value).data()
    }
}
