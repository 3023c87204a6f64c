//! The rules of the tree. Each failure says which file breaks which rule.
#![allow(clippy::unwrap_used)]

use std::fs;

use armature_tidy::{Manifest, files, root};

const SHARED: [&str; 4] = ["armature-kv-hash", "armature-contracts", "armature-svc-kit", "armature-kv-redis"];
/// The router's index is a crate of its own, and nobody else's.
const ROUTER: [&str; 5] = [
    "armature-kv-hash",
    "armature-contracts",
    "armature-svc-kit",
    "armature-kv-redis",
    "armature-prefix-index",
];
const BENCH_ROUTER: [&str; 2] = ["armature-kv-hash", "armature-prefix-index"];
/// Dev-only crates, and whom they may see.
const SEES_SERVICES: [&str; 5] =
    ["armature", "armature-sim", "armature-e2e", "armature-containers", "armature-kv-events"];

fn allowed(name: &str) -> Option<&'static [&'static str]> {
    match name {
        "armature-kv-hash" | "armature-prefix-index" => Some(&[]),
        "armature-tidy" | "armature-tiny-gguf" | "armature-test-backends" => Some(&[]),
        "armature-router" => Some(&ROUTER),
        "armature-bench-router" => Some(&BENCH_ROUTER),
        "armature-contracts" => Some(&SHARED[..1]),
        "armature-svc-kit" => Some(&SHARED[..2]),
        "armature-kv-redis" => Some(&SHARED[..3]),
        name if SEES_SERVICES.contains(&name) => None,
        _ => Some(&SHARED),
    }
}

#[test]
fn dependencies_point_one_way() {
    for manifest in Manifest::all(&root()) {
        let Some(allowed) = allowed(manifest.name()) else { continue };
        for dependency in manifest.own_dependencies("dependencies") {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{}: {} must not depend on {dependency}: a service knows contracts, kv-hash, svc-kit and kv-redis, never another service",
                manifest.path.display(),
                manifest.name()
            );
        }
    }
}

#[test]
fn shared_crates_are_named_by_version_and_path() {
    for manifest in Manifest::all(&root()) {
        for name in manifest.own_dependencies("dependencies") {
            let entry = &manifest.toml["dependencies"][&name];
            assert!(
                entry.get("version").is_some() && entry.get("path").is_some(),
                "{}: {name} needs a version and a path, so that the folder can become its own repository",
                manifest.path.display()
            );
        }
    }
}

#[test]
fn lint_tables_are_equal_and_nothing_is_inherited() {
    let manifests = Manifest::all(&root());
    let wanted = manifests.iter().find(|m| m.name() == "armature-contracts").unwrap().toml["lints"].clone();
    for manifest in &manifests {
        assert_eq!(
            manifest.toml.get("lints"),
            Some(&wanted),
            "{}: its [lints] differ",
            manifest.path.display()
        );
        let text = fs::read_to_string(root().join(&manifest.path)).unwrap();
        assert!(
            !text.contains("workspace = true"),
            "{}: inherits from the workspace; a service folder stands alone",
            manifest.path.display()
        );
    }
}

#[test]
fn domains_are_pure() {
    const BANNED: [(&str, &str); 10] = [
        ("tokio", "async belongs to the shell"),
        ("tonic", "gRPC belongs to the shell"),
        ("Instant::now", "time is an argument"),
        ("SystemTime", "time is an argument"),
        ("rand::rng", "randomness is an argument"),
        ("thread_rng", "randomness is an argument"),
        ("async fn", "the domain is synchronous"),
        ("std::fs", "no I/O"),
        ("std::net", "no I/O"),
        ("armature_contracts::{kv", "generated types stop at convert.rs"),
    ];
    let mut seen = 0;
    for file in files(&root(), "rs") {
        if !file.components().any(|part| part.as_os_str() == "domain") {
            continue;
        }
        seen += 1;
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for (word, why) in BANNED {
                assert!(
                    !code.contains(word),
                    "{}:{}: `{word}` in a domain: {why}",
                    file.display(),
                    number + 1
                );
            }
        }
    }
    assert!(seen > 10, "found only {seen} files in domain folders");
}

#[test]
fn unsafe_code_stays_in_the_files_named_for_it() {
    const ALLOWED: [&str; 6] = [
        "router-svc/prefix-index/src/published.rs",
        "worker-svc/src/kv_memory.rs",
        "worker-svc/src/engine/llama/kernels/mod.rs",
        "worker-svc/src/engine/llama/kernels/x86.rs",
        "worker-svc/src/engine/llama/mapping.rs",
        "worker-svc/src/transfer/mapping.rs",
    ];
    for file in files(&root(), "rs") {
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if name.starts_with("ci/tidy") || ALLOWED.contains(&name.as_str()) {
            continue;
        }
        assert!(
            !fs::read_to_string(&file).unwrap().contains("allow(unsafe_code)"),
            "{name}: allows unsafe code; only {ALLOWED:?} may"
        );
    }
}
