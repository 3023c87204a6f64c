//! The cache of quantised weights: the same results, and no trust in damaged files.

use std::fs;
use std::path::PathBuf;

use armature_tiny_gguf::{Spec, TensorType};
use armature_worker::engine::llama::{LlamaEngine, LoadOptions, WeightStore, load};

use super::{bits, teacher_forced};

const TOKENS: [u32; 5] = [1, 50, 7, 260, 33];

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = Spec { tensor_type: TensorType::Q4_1, ..Spec::default() };
        armature_tiny_gguf::write(&dir.path().join("model.gguf"), &spec).expect("written");
        Self { dir }
    }

    fn load(&self, store: &WeightStore) -> LlamaEngine {
        let cache_dir = Some(self.dir.path().join("weights"));
        let options = LoadOptions { threads: 1, cache_dir, block_size: 16 };
        load(&self.dir.path().join("model.gguf"), &options, store).expect("loads")
    }

    fn logits(&self) -> Vec<Vec<u32>> {
        let mut engine = self.load(&WeightStore::new());
        teacher_forced(&mut engine, &TOKENS).iter().map(|row| bits(row)).collect()
    }

    /// The one file in the cache.
    fn cached(&self) -> PathBuf {
        let entries: Vec<_> = fs::read_dir(self.dir.path().join("weights")).expect("a cache").collect();
        assert_eq!(entries.len(), 1, "one file, and nothing half written");
        entries[0].as_ref().expect("an entry").path()
    }
}

#[test]
fn cached_weights_give_the_same_bits_and_are_not_written_again() {
    let fixture = Fixture::new();
    let first = fixture.logits();
    let written = fs::metadata(fixture.cached()).expect("there").modified().expect("a time");
    assert_eq!(fixture.logits(), first);
    assert_eq!(fs::metadata(fixture.cached()).expect("there").modified().expect("a time"), written);
}

#[test]
fn a_damaged_cache_is_rebuilt() {
    let fixture = Fixture::new();
    let first = fixture.logits();
    let good = fs::read(fixture.cached()).expect("read");
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let mut version = good.clone();
    version[8] ^= 1;
    for damaged in [flipped, version, good[..good.len() - 1].to_vec(), vec![], b"something else".to_vec()] {
        // Replaced, not rewritten: the old file may still be mapped.
        fs::remove_file(fixture.cached()).expect("removed");
        fs::write(fixture.dir.path().join("weights").join(name(&good)), damaged).expect("written");
        assert_eq!(fixture.logits(), first);
        assert_eq!(fs::read(fixture.cached()).expect("read"), good);
    }
}

/// The name that the cache gives its file: the model digest is at byte 20 of the header.
fn name(good: &[u8]) -> String {
    let digest: String = good[20..52].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digest}.q8_0-v1")
}

#[test]
fn a_directory_that_cannot_be_written_costs_only_the_cache() {
    let fixture = Fixture::new();
    let first = fixture.logits();
    fs::remove_dir_all(fixture.dir.path().join("weights")).expect("removed");
    fs::write(fixture.dir.path().join("weights"), b"a file where the directory should be").expect("written");
    assert_eq!(fixture.logits(), first);
}

#[test]
fn engines_of_one_store_run_on_the_same_weights() {
    let fixture = Fixture::new();
    let store = WeightStore::new();
    let first = fixture.load(&store);
    // With the file gone, only the store can have them.
    fs::remove_dir_all(fixture.dir.path().join("weights")).expect("removed");
    let mut second = fixture.load(&store);
    assert!(!fixture.dir.path().join("weights").exists(), "nothing was quantised again");
    drop(first);
    assert_eq!(teacher_forced(&mut second, &TOKENS).len(), TOKENS.len());
}
