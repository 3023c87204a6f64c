//! Rules of the tree, as functions over its files; `tests/tree.rs` applies them.
//!
//! Does not build, format or lint anything: cargo does.

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("ci/tidy lies two levels below the root")
}

/// Every file below `dir` with extension `ext`, build output and hidden folders aside, sorted.
pub fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.');
            if path.is_dir() && !hidden && name != "target" {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == ext) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A manifest of the workspace.
#[derive(Debug)]
pub struct Manifest {
    /// Where it lies, relative to the root.
    pub path: PathBuf,
    /// Its content.
    pub toml: toml::Table,
}

impl Manifest {
    /// Every Cargo.toml of the tree.
    pub fn all(root: &Path) -> Vec<Self> {
        files(root, "toml")
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name == "Cargo.toml"))
            .map(|path| {
                let text = fs::read_to_string(&path).expect("a manifest can be read");
                let toml = text.parse().expect("a manifest is TOML");
                Self { path: path.strip_prefix(root).expect("below the root").to_owned(), toml }
            })
            .collect()
    }

    /// Name of its package.
    pub fn name(&self) -> &str {
        self.toml["package"]["name"].as_str().expect("a package has a name")
    }

    /// Names of the Armature crates in a dependency table.
    pub fn own_dependencies(&self, table: &str) -> Vec<String> {
        let table = self.toml.get(table).and_then(|t| t.as_table());
        table
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .filter(|name| name.starts_with("armature"))
            .collect()
    }
}
