//! The flags every service has, and the way a service adds typed ones.

use std::path::PathBuf;

use figment::value::Value;
use serde::Serialize;

use super::ConfigError;

/// The configuration flags of every binary; flatten it into the service's own `clap` type.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArgs {
    /// TOML configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one configuration key, for instance `--set listen.port=0`; repeatable, the last wins.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the resulting configuration as TOML, secrets redacted, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Ask the process that runs with this configuration whether it is ready, and exit: 0 yes, 1 no.
    #[arg(long, conflicts_with = "print_config")]
    pub probe: bool,
}

/// Values of typed flags, by configuration key; they win over everything else.
#[derive(Debug, Default)]
pub struct Flags(Vec<(String, Result<Value, figment::Error>)>);

impl Flags {
    /// No typed flag.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` (dotted, as in `--set`) if the flag was given.
    #[must_use]
    pub fn set<V: Serialize>(mut self, key: &str, value: Option<V>) -> Self {
        if let Some(value) = value {
            self.0.push((key.to_owned(), Value::serialize(value)));
        }
        self
    }

    pub(super) fn into_values(self) -> Result<Vec<(String, Value)>, ConfigError> {
        self.0.into_iter().map(|(key, value)| Ok((key, value.map_err(ConfigError::from_figment)?))).collect()
    }
}
