//! Who may do what: users with the rules of docs/operations.md, TLS in both directions, and what is said when it does not fit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use armature_kv_events::fleet::Fleet;
use armature_kv_redis::{ConnectError, Connector as _, Redis as Client, RedisConfig};
use armature_svc_kit::secret::Secret;
use armature_test_backends::{Redis, free_port};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

const PATIENCE: Duration = Duration::from_secs(60);

fn connect(config: &RedisConfig) -> Client {
    Client::new(config.validate().unwrap().unwrap()).unwrap()
}

fn user(redis: &Redis, name: &str, password: &str) -> RedisConfig {
    RedisConfig {
        url: redis.url(),
        username: name.into(),
        password: Some(Secret::from_value(password).unwrap()),
        ..RedisConfig::default()
    }
}

/// The rules that operations.md gives for a user.
fn rules(name: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/operations.md");
    let line = page.lines().find(|line| line.trim_start().starts_with(&format!("user {name} "))).unwrap();
    line.split_whitespace().skip(2).map(|word| word.replace(">...", ">secret")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rules_are_enough() {
    let mut args = ["--user", "default", "off"].map(str::to_owned).to_vec();
    for name in ["armature-worker", "armature-router"] {
        args.extend(["--user".to_owned(), name.to_owned()]);
        args.extend(rules(name));
    }
    let redis = Redis::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let writing = connect(&user(&redis, "armature-worker", "secret"));
    let reading = connect(&user(&redis, "armature-router", "secret"));
    let mut fleet = Fleet::start_apart(writing, reading, 2, 1, 1);
    fleet.change();
    fleet.settles(PATIENCE).await;
    fleet.reads_redis_only(PATIENCE).await;
    fleet.restart_router(0);
    fleet.settles(PATIENCE).await;
    assert_eq!(fleet.routers[0].metrics.snapshots.get(), 2);

    let wrong = connect(&user(&redis, "armature-router", "other")).connect().await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Login(_)), "{wrong}");
    assert!(wrong.to_string().contains("kv_events.redis.password"), "{wrong}");
    let nobody = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    let nobody = connect(&nobody).connect().await.unwrap_err();
    assert!(matches!(nobody, ConnectError::Login(_)), "{nobody}");
}

/// Files of an authority and of what it vouches for.
struct Files {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

fn files(dir: &Path, name: &str) -> Files {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(authority, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "redis");
    let cert = params.signed_by(&key, &issuer).unwrap();
    let put = |what: &str, text: String| {
        let path = dir.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    Files { ca: put("ca", ca.pem()), cert: put("cert", cert.pem()), key: put("key", key.serialize_pem()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_proves_both_sides_or_says_which_files() {
    let dir = tempfile::tempdir().unwrap();
    let (own, foreign) = (files(dir.path(), "own"), files(dir.path(), "foreign"));
    let port = free_port();
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let args = [
        ("--tls-port", port.to_string()),
        ("--tls-cert-file", text(&own.cert)),
        ("--tls-key-file", text(&own.key)),
        ("--tls-ca-cert-file", text(&own.ca)),
        ("--tls-auth-clients", "yes".to_owned()),
    ];
    let args: Vec<&str> = args.iter().flat_map(|(name, value)| [*name, value.as_str()]).collect();
    let _redis = Redis::start(&args);
    let config = RedisConfig {
        url: format!("rediss://127.0.0.1:{port}"),
        ca_file: Some(own.ca),
        cert_file: Some(own.cert),
        key_file: Some(own.key),
        ..RedisConfig::default()
    };
    connect(&config).connect().await.expect("both sides have proven themselves");
    let mut fleet = Fleet::start(connect(&config), 2, 1, 1);
    fleet.change();
    fleet.settles(PATIENCE).await;
    fleet.reads_redis_only(PATIENCE).await;

    let stranger = RedisConfig { ca_file: Some(foreign.ca.clone()), ..config.clone() };
    let stranger = connect(&stranger).connect().await.unwrap_err();
    assert!(matches!(stranger, ConnectError::Tls(_)), "{stranger}");
    let unproven = RedisConfig { cert_file: None, key_file: None, ..config.clone() };
    let unproven = connect(&unproven).connect().await.err().map(|error| error.name());
    assert!(unproven == Some("tls") || unproven == Some("unreachable"), "{unproven:?}");
    let no_pem = RedisConfig { ca_file: Some(foreign.key), ..config };
    let text = no_pem.validate().unwrap_err().to_string();
    assert!(text.contains("kv_events.redis.ca_file"), "{text}");
}
