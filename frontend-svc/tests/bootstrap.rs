//! Generates the Rust code of the gateway's protocol from its .proto file and compares it with what is committed.
//! `ARMATURE_BOOTSTRAP=write cargo test -p armature-frontend --test bootstrap` writes it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

const FILE: &str = "envoy/service/ext_proc/v3/external_processor.proto";
const GENERATED: &str = "envoy.service.ext_proc.v3.rs";

#[test]
fn generated_code_is_what_the_proto_file_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile([root.join("proto").join(FILE)], [root.join("proto")]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure().out_dir(out.path()).bytes(".").compile_fds(descriptors).unwrap();
    let fresh = fs::read_to_string(out.path().join(GENERATED)).unwrap();
    let committed = root.join("src/gateway/wire").join(GENERATED);
    if std::env::var_os("ARMATURE_BOOTSTRAP").is_some_and(|value| value == "write") {
        fs::write(&committed, &fresh).unwrap();
    }
    let old = fs::read_to_string(&committed).unwrap_or_default();
    assert!(old == fresh, "src/gateway/wire/{GENERATED} is out of date: see the head of this test");
}
