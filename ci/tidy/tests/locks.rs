//! Every service's own Cargo.lock: complete for a copy of its folder and `proto/`, and nothing but versions of the workspace's.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use armature_tidy::root;

const SERVICES: [&str; 4] = ["discovery-svc", "frontend-svc", "router-svc", "worker-svc"];

/// Name, version, source and checksum of each package.
fn packages(lock: &Path) -> BTreeSet<[String; 4]> {
    let text = fs::read_to_string(lock).unwrap_or_else(|_| panic!("{}: run ci/lock.sh", lock.display()));
    let table: toml::Table = text.parse().unwrap();
    let field = |package: &toml::Value, name: &str| {
        package.get(name).and_then(toml::Value::as_str).unwrap_or_default().to_owned()
    };
    let packages = table["package"].as_array().unwrap().iter();
    packages.map(|it| ["name", "version", "source", "checksum"].map(|name| field(it, name))).collect()
}

#[test]
fn each_entry_is_one_of_the_workspace() {
    let known = packages(&root().join("Cargo.lock"));
    for service in SERVICES {
        let own = packages(&root().join(service).join("Cargo.lock"));
        let foreign: Vec<_> = own.difference(&known).collect();
        assert!(
            foreign.is_empty(),
            "{service}/Cargo.lock: run ci/lock.sh; not in the workspace's: {foreign:?}"
        );
    }
}

/// Copies what cargo looks at: manifests, lock files, and sources, for it wants to see targets.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
        if path.is_dir() && entry.file_name() != "target" {
            copy(&path, &target);
        } else if ["toml", "lock", "rs"].contains(&kind) {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn a_copy_of_a_service_and_proto_resolves_as_it_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    copy(&root().join("proto"), &dir.path().join("proto"));
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    for service in SERVICES {
        copy(&root().join(service), &dir.path().join(service));
        let metadata = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--offline",
                "--locked",
                "--format-version",
                "1",
                "--filter-platform",
                &platform,
                "--manifest-path",
            ])
            .arg(dir.path().join(service).join("Cargo.toml"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&metadata.stderr);
        assert!(metadata.status.success(), "{service}/Cargo.lock: run ci/lock.sh; cargo says: {said}");
    }
}
