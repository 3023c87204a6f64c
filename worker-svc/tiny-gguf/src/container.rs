//! The GGUF v3 container: header, key-value pairs, tensor infos, aligned tensor data.

use crate::encode::TensorType;

const ALIGNMENT: usize = 32;

/// Value type tags of the format.
mod tag {
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

/// A GGUF file being built.
#[derive(Default)]
pub(crate) struct Container {
    pairs: u64,
    metadata: Vec<u8>,
    tensors: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
}

fn put_string(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

fn pad(to: &mut Vec<u8>) {
    to.resize(to.len().next_multiple_of(ALIGNMENT), 0);
}

impl Container {
    fn key(&mut self, key: &str, tag: u32) {
        self.pairs += 1;
        put_string(&mut self.metadata, key);
        self.metadata.extend(tag.to_le_bytes());
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        self.key(key, tag::STRING);
        put_string(&mut self.metadata, value);
    }

    pub(crate) fn u32(&mut self, key: &str, value: usize) {
        self.key(key, tag::U32);
        let value = u32::try_from(value).expect("a tiny model has tiny numbers");
        self.metadata.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.key(key, tag::F32);
        self.metadata.extend(value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.key(key, tag::BOOL);
        self.metadata.push(u8::from(value));
    }

    fn array(&mut self, key: &str, tag: u32, len: usize) {
        self.key(key, tag::ARRAY);
        self.metadata.extend(tag.to_le_bytes());
        self.metadata.extend((len as u64).to_le_bytes());
    }

    pub(crate) fn i32_array(&mut self, key: &str, values: &[i32]) {
        self.array(key, tag::I32, values.len());
        self.metadata.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    pub(crate) fn string_array(&mut self, key: &str, values: &[String]) {
        self.array(key, tag::STRING, values.len());
        for value in values {
            put_string(&mut self.metadata, value);
        }
    }

    /// Adds a tensor; `dims` as GGUF orders them, the contiguous one first.
    pub(crate) fn tensor(&mut self, name: &str, dims: &[usize], kind: TensorType, data: &[u8]) {
        self.tensors += 1;
        put_string(&mut self.infos, name);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        for dim in dims {
            self.infos.extend((*dim as u64).to_le_bytes());
        }
        self.infos.extend(kind.id().to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        pad(&mut self.data);
    }

    /// The bytes of the file.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut file = Vec::new();
        file.extend(b"GGUF");
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensors.to_le_bytes());
        file.extend(self.pairs.to_le_bytes());
        file.extend(self.metadata);
        file.extend(self.infos);
        pad(&mut file);
        file.extend(self.data);
        file
    }
}
