//! What deny.toml says of the packages that are built, checked wherever the tests run: `cargo deny` itself is not
//! everywhere, and needs every platform's packages. This reads the ones that this machine builds.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use armature_tidy::root;
use spdx::{Expression, Licensee, ParseMode};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

struct Package {
    name: String,
    licence: Option<String>,
    /// `None` for a package that lies in a folder.
    source: Option<String>,
    manifest: String,
}

fn packages() -> Vec<Package> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| Package {
            name: text(&package["name"]).unwrap(),
            licence: text(&package["license"]),
            source: text(&package["source"]),
            manifest: text(&package["manifest_path"]).unwrap(),
        })
        .collect()
}

fn rules() -> toml::Table {
    fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

#[test]
fn every_licence_is_on_the_list() {
    let rules = rules();
    let allowed: Vec<Licensee> = rules["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| Licensee::parse(licence.as_str().unwrap()).unwrap())
        .collect();
    for Package { name, licence, .. } in packages() {
        let licence = licence.unwrap_or_else(|| panic!("{name} names no licence"));
        // Lax: old packages write MIT/Apache-2.0 where SPDX says OR.
        let expression = Expression::parse_mode(&licence, ParseMode::LAX).unwrap();
        assert!(
            expression.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted))),
            "{name} is under `{licence}`, which the list in deny.toml does not allow"
        );
    }
}

#[test]
fn every_package_is_from_the_registry_or_this_tree() {
    for Package { name, source, manifest, .. } in packages() {
        match source {
            Some(source) => assert_eq!(source, REGISTRY, "{name} comes from elsewhere"),
            None => {
                assert!(Path::new(&manifest).starts_with(root()), "{name} lies outside the tree: {manifest}")
            }
        }
    }
}

#[test]
fn no_banned_package_is_built() {
    let rules = rules();
    let banned = rules["bans"]["deny"].as_array().unwrap();
    for Package { name, .. } in packages() {
        let ban = banned.iter().find(|ban| ban["name"].as_str() == Some(&name));
        assert!(ban.is_none(), "{name} is banned: {}", ban.unwrap()["reason"]);
    }
}
