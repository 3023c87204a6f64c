//! Four layers, and what a wrong key is told.

use std::collections::BTreeMap;
use std::io::Write as _;

use armature_svc_kit::address::Address;
use armature_svc_kit::config::{self, ConfigArgs, ConfigError, Flags};
use armature_svc_kit::exit::Exit;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::telemetry::TelemetryConfig;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    address: Address,
    name: String,
    queue: Queue,
    engine: Engine,
    token: Option<Secret>,
    labels: BTreeMap<String, String>,
    telemetry: TelemetryConfig,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Queue {
    limit: usize,
    share: f64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Engine {
    Llama { model: String },
    Sim,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: Address::tcp("127.0.0.1", 7200),
            name: "router".to_owned(),
            queue: Queue::default(),
            engine: Engine::Llama { model: "a.gguf".to_owned() },
            token: None,
            labels: BTreeMap::new(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self { limit: 64, share: 0.1 }
    }
}

fn load(file: Option<&str>, env: &[(&str, &str)], set: &[&str], flags: Flags) -> Result<Config, ConfigError> {
    let file = file.map(|text| {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    });
    let args = ConfigArgs {
        config: file.as_ref().map(|file| file.path().to_owned()),
        set: set.iter().map(ToString::to_string).collect(),
        print_config: false,
        probe: false,
    };
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    config::load("router", &args, flags, env)
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(load(None, &[], &[], Flags::new()).unwrap(), Config::default());
}

#[test]
fn the_later_layer_wins() {
    let file = "[queue]\nlimit = 1\nshare = 0.2\n";
    let env = [("ARMATURE_ROUTER__QUEUE__LIMIT", "2"), ("ARMATURE_WORKER__QUEUE__LIMIT", "9")];
    let limit = |loaded: Result<Config, _>| loaded.unwrap().queue;
    assert_eq!(limit(load(Some(file), &[], &[], Flags::new())), Queue { limit: 1, share: 0.2 });
    assert_eq!(limit(load(Some(file), &env, &[], Flags::new())), Queue { limit: 2, share: 0.2 });
    let set = ["queue.limit=3"];
    assert_eq!(limit(load(Some(file), &env, &set, Flags::new())), Queue { limit: 3, share: 0.2 });
    let flags = || Flags::new().set("queue.limit", Some(4)).set("queue.share", None::<f64>);
    assert_eq!(limit(load(Some(file), &env, &set, flags())), Queue { limit: 4, share: 0.2 });
}

#[test]
fn text_keys_take_digits_and_a_variant_replaces_another() {
    let loaded = load(None, &[("ARMATURE_ROUTER__NAME", "007")], &["engine.kind=sim"], Flags::new()).unwrap();
    assert_eq!(loaded.name, "007");
    assert_eq!(loaded.engine, Engine::Sim);
    let loaded = load(None, &[("ARMATURE_ROUTER__LABELS__ZONE", "a")], &["address=mem:router"], Flags::new());
    let loaded = loaded.unwrap();
    assert_eq!(loaded.labels["zone"], "a");
    assert_eq!(loaded.address, Address::mem("router"));
}

#[test]
fn an_unknown_key_names_the_nearest_and_its_origin() {
    let told = |loaded: Result<Config, ConfigError>| {
        let error = loaded.unwrap_err();
        assert_eq!(error.exit(), Exit::Configuration);
        assert_eq!(error.exit().code(), 64);
        error.to_string()
    };
    let text = told(load(Some("[queue]\nlimt = 1\n"), &[], &[], Flags::new()));
    assert!(text.contains("`queue.limt`") && text.contains("`queue.limit`"), "{text}");
    assert!(text.contains("file /") && text.contains(".toml"), "{text}");
    let text = told(load(None, &[("ARMATURE_ROUTER__ADRESS", "x")], &[], Flags::new()));
    assert!(text.contains("`address`") && text.contains("ARMATURE_ROUTER__ADRESS"), "{text}");
    let text = told(load(None, &[], &["telemetry.log_formt=json"], Flags::new()));
    assert!(text.contains("telemetry.log_format") && text.contains("--set"), "{text}");
    let text = told(load(None, &[], &["zzzz=1"], Flags::new()));
    assert!(text.contains("`zzzz`") && !text.contains("did you mean"), "{text}");
}

#[test]
fn a_wrong_value_names_its_key_and_origin() {
    let told = |set: &str| load(None, &[], &[set], Flags::new()).unwrap_err().to_string();
    let text = told("queue.limit=many");
    assert!(text.contains("`queue.limit`") && text.contains("--set queue.limit"), "{text}");
    let text = told("address=nowhere");
    assert!(text.contains("`address`") && text.contains("nowhere"), "{text}");
    let text = told("telemetry.log_format=jsn");
    assert!(text.contains("did you mean `json`"), "{text}");
    assert!(matches!(load(None, &[], &["nothing"], Flags::new()), Err(ConfigError::Assignment(_))));
}

#[test]
fn a_missing_or_broken_file_is_an_error() {
    let args = ConfigArgs { config: Some("/nonexistent/armature.toml".into()), ..ConfigArgs::default() };
    let error = config::load::<Config>("router", &args, Flags::new(), []).unwrap_err();
    assert!(matches!(error, ConfigError::File { .. }));
    assert!(load(Some("queue = ["), &[], &[], Flags::new()).is_err());
}

#[test]
fn printing_redacts_secrets_and_reads_back() {
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    writeln!(secret, "hunter22").unwrap();
    let set = format!("token.file={}", secret.path().display());
    for set in [set.as_str(), "token=hunter22"] {
        let loaded = load(None, &[], &[set], Flags::new()).unwrap();
        assert_eq!(loaded.token.as_ref().unwrap().expose(), "hunter22");
        let text = config::to_toml(&loaded).unwrap();
        assert!(!text.contains("hunter22") && text.contains("<redacted>"), "{text}");
        assert!(!format!("{loaded:?}").contains("hunter22"));
    }
    let printed = config::to_toml(&Config::default()).unwrap();
    assert_eq!(config::parse_toml::<Config>(&printed).unwrap(), Config::default());
}

#[test]
fn a_wrong_secret_is_not_echoed() {
    let error = load(None, &[], &["token=987654321"], Flags::new()).unwrap_err().to_string();
    assert!(!error.contains("987654321") && error.contains("`token`"), "{error}");
}
