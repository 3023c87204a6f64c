//! Generates the Rust code of the contracts from the .proto files and compares it with what is committed.
//! No protoc is needed. `ARMATURE_BOOTSTRAP=write cargo test -p armature-contracts --test bootstrap` writes it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

const FILES: [&str; 6] = [
    "armature/kv/v1/kv.proto",
    "armature/inference/v1/types.proto",
    "armature/inference/v1/inference.proto",
    "armature/discovery/v1/discovery.proto",
    "armature/router/v1/router.proto",
    "armature/worker/v1/worker.proto",
];

fn read_all(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn generated_code_is_what_the_proto_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES.map(|file| root.join(file)), [root]).unwrap();
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("descriptors.bin"), descriptors.encode_to_vec()).unwrap();
    tonic_prost_build::configure().out_dir(out.path()).bytes(".").compile_fds(descriptors).unwrap();

    let committed = root.join("src/gen");
    let fresh = read_all(out.path());
    if std::env::var_os("ARMATURE_BOOTSTRAP").is_some_and(|value| value == "write") {
        for (name, content) in &fresh {
            fs::write(committed.join(name), content).unwrap();
        }
    }
    let old = read_all(&committed);
    assert_eq!(fresh.keys().collect::<Vec<_>>(), old.keys().collect::<Vec<_>>(), "files of src/gen");
    for (name, content) in &fresh {
        assert!(
            old[name] == *content,
            "src/gen/{} is out of date: see the head of this test",
            name.display()
        );
    }
}
