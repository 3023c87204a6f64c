//! Reads the GGUF container, versions 2 and 3, from bytes that nobody vouches for.
//!
//! Layout, little-endian: `"GGUF"`, version u32, tensor count u64, pair count u64, the key-value
//! pairs, the tensor infos (name, dimensions with the contiguous one first, type, offset), padding
//! to `general.alignment`, tensor data. Strings are a u64 length and UTF-8 bytes.
//!
//! Every length is checked against the bytes that are there before anything is reserved, so memory
//! is bounded by a small multiple of the file's size.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::tensor::{Kind, TensorType};

/// Most key-value pairs, and most tensors, that a file may have.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most elements of all arrays of a file together; the largest vocabularies have about 2^18 tokens.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 23;
/// Most bytes between two tensors.
const MAX_ALIGNMENT: u64 = 1 << 16;

/// Why a file cannot be read as the model it is meant to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file")]
    NotGguf,
    /// The file ends inside what is being read.
    #[error("truncated: the file ends inside {what}")]
    Truncated {
        /// What was being read.
        what: String,
    },
    /// A version of the container that is not read here (big-endian files show as huge numbers).
    #[error("unsupported GGUF version {0}; supported: 2, 3")]
    Version(u32),
    /// A model family other than `llama`.
    #[error("unsupported architecture {0:?}; supported: \"llama\"")]
    Architecture(String),
    /// A tensor type that is not read here.
    #[error("unsupported tensor type {kind} of {tensor}; supported: {}", Kind::SUPPORTED)]
    TensorType {
        /// The type.
        kind: TensorType,
        /// The tensor's name.
        tensor: String,
    },
    /// A key that the model needs is absent.
    #[error("missing key {0}")]
    MissingKey(String),
    /// A tensor that the model needs is absent.
    #[error("missing tensor {0}")]
    MissingTensor(String),
    /// A tensor that a plain Llama does not have: ignoring it would compute another model.
    #[error("unsupported tensor {0}: not part of a plain Llama model")]
    UnknownTensor(String),
    /// A value has another type, or a value that makes no sense.
    #[error("key {key}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What would be right.
        expected: String,
    },
    /// A tensor's dimensions are not those that the metadata imply.
    #[error("shape mismatch: {tensor} is {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Dimensions in the file, the contiguous one first.
        found: Vec<u64>,
        /// Dimensions that the metadata imply.
        expected: Vec<u64>,
    },
    /// A number beyond anything a model has.
    #[error("absurd size: {what} is {value}, at most {limit} is read")]
    Absurd {
        /// What the number counts.
        what: String,
        /// The number.
        value: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A feature of the family that is not computed here.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A weight that is infinite, not a number, or too large for its block.
    #[error("{0} contains weights that are not finite")]
    NotFinite(String),
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer, or a signed one that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A float of either width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text, borrowed from the file.
    String(&'a str),
    /// Values of one type; arrays do not nest.
    Array(Vec<Value<'a>>),
}

/// One tensor: its dimensions (the contiguous one first), its type and where its data are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tensor {
    /// Dimensions, the contiguous one first.
    pub dims: Vec<u64>,
    /// Type as the file names it.
    pub kind: TensorType,
    /// Bytes of the file; empty where the type is not supported.
    data: Range<usize>,
}

/// A parsed file, borrowing the bytes it was parsed from.
pub struct Gguf<'a> {
    bytes: &'a [u8],
    metadata: BTreeMap<&'a str, Value<'a>>,
    tensors: BTreeMap<&'a str, Tensor>,
}

impl fmt::Debug for Gguf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pairs, tensors) = (self.metadata.len(), self.tensors.len());
        f.debug_struct("Gguf").field("pairs", &pairs).field("tensors", &tensors).finish()
    }
}

impl<'a> Gguf<'a> {
    /// Parses the header, the metadata and the tensor infos.
    ///
    /// # Errors
    /// [`GgufError`] for anything that is not a well-formed file of version 2 or 3.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0, elements: 0 };
        if reader.take(4, "the magic").map_err(|_| GgufError::NotGguf)? != b"GGUF" {
            return Err(GgufError::NotGguf);
        }
        let version = reader.u32("the header")?;
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version(version));
        }
        let tensor_count = reader.bounded("the tensor count", MAX_ENTRIES)?;
        let pair_count = reader.bounded("the number of keys", MAX_ENTRIES)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pair_count {
            let key = reader.string("a key")?;
            let kind = reader.u32(key)?;
            let value = reader.value(key, kind)?;
            if metadata.insert(key, value).is_some() {
                return Err(GgufError::Value { key: key.to_owned(), expected: "a key to occur once".into() });
            }
        }
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(reader.tensor_info()?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= MAX_ALIGNMENT => *n,
            Some(_) => {
                let (key, expected) = ("general.alignment".to_owned(), "a small power of two".to_owned());
                return Err(GgufError::Value { key, expected });
            }
        };
        let data_start = (reader.at as u64).next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for info in infos {
            let tensor = info.locate(data_start, bytes.len())?;
            if tensors.insert(info.name, tensor).is_some() {
                let (key, expected) = (info.name.to_owned(), "a tensor to occur once".to_owned());
                return Err(GgufError::Value { key, expected });
            }
        }
        Ok(Self { bytes, metadata, tensors })
    }

    /// A metadata value, if the key is there.
    pub fn value(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.get(key)
    }

    /// Names of all tensors, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.tensors.keys().copied()
    }

    /// A tensor of `dims` (the contiguous one first) of a supported type, and its data.
    ///
    /// # Errors
    /// The tensor is missing, has other dimensions or a type that is not supported.
    pub fn tensor(&self, name: &str, dims: &[usize]) -> Result<(Kind, &'a [u8]), GgufError> {
        let tensor = self.tensors.get(name).ok_or_else(|| GgufError::MissingTensor(name.to_owned()))?;
        let expected: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        if tensor.dims != expected {
            return Err(GgufError::Shape { tensor: name.to_owned(), found: tensor.dims.clone(), expected });
        }
        let kind = tensor
            .kind
            .supported()
            .ok_or_else(|| GgufError::TensorType { kind: tensor.kind, tensor: name.to_owned() })?;
        Ok((kind, &self.bytes[tensor.data.clone()]))
    }

    /// A key's value, converted by `convert`; `None` where the key is absent.
    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let wrong = || GgufError::Value { key: key.to_owned(), expected: expected.to_owned() };
        self.value(key).map(|value| convert(value).ok_or_else(wrong)).transpose()
    }

    /// An integer key, at most `limit`.
    ///
    /// # Errors
    /// The value is not an integer from 0 to `limit`.
    pub fn integer(&self, key: &str, limit: usize) -> Result<Option<usize>, GgufError> {
        let value = self.typed(key, "a non-negative integer", |v| match v {
            Value::Unsigned(n) => Some(*n),
            _ => None,
        })?;
        match value {
            Some(value) if value > limit as u64 => {
                Err(GgufError::Absurd { what: key.to_owned(), value, limit: limit as u64 })
            }
            other => Ok(other.map(|n| n as usize)),
        }
    }

    /// A float key.
    ///
    /// # Errors
    /// The value is not a finite float.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a finite float", |v| match v {
            Value::Float(x) if x.is_finite() => Some(*x),
            _ => None,
        })
    }

    /// A text key.
    ///
    /// # Errors
    /// The value is not a string.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |v| match v {
            Value::String(s) => Some(*s),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// The value is not a bool.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// An array of text.
    ///
    /// # Errors
    /// The value is not an array of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::String(s) => Some(*s),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    /// An array of non-negative integers.
    ///
    /// # Errors
    /// The value is not such an array.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.typed(key, "an array of non-negative integers", |v| match v {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::Unsigned(n) => Some(*n),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }
}

/// A tensor info before the start of the data is known.
struct Info<'a> {
    name: &'a str,
    dims: Vec<u64>,
    kind: TensorType,
    offset: u64,
}

impl Info<'_> {
    fn locate(&self, data_start: u64, file_len: usize) -> Result<Tensor, GgufError> {
        let truncated = || GgufError::Truncated { what: format!("the data of {}", self.name) };
        let shape =
            || GgufError::Shape { tensor: self.name.to_owned(), found: self.dims.clone(), expected: vec![] };
        let Some(kind) = self.kind.supported() else {
            return Ok(Tensor { dims: self.dims.clone(), kind: self.kind, data: 0..0 });
        };
        let elements =
            self.dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim)).ok_or_else(shape)?;
        let rows_whole = self.dims.first().is_some_and(|cols| cols.is_multiple_of(kind.block_len() as u64));
        if !rows_whole {
            return Err(shape());
        }
        let len = (elements / kind.block_len() as u64)
            .checked_mul(kind.block_bytes() as u64)
            .ok_or_else(truncated)?;
        let start = data_start.checked_add(self.offset).ok_or_else(truncated)?;
        let end = start.checked_add(len).filter(|end| *end <= file_len as u64).ok_or_else(truncated)?;
        Ok(Tensor { dims: self.dims.clone(), kind: self.kind, data: start as usize..end as usize })
    }
}

/// A position in the bytes, and how many array elements were read so far.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    elements: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(GgufError::Truncated { what: what.to_owned() }),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        taken.try_into().map_err(|_| GgufError::Truncated { what: what.to_owned() })
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn bounded(&mut self, what: &str, limit: u64) -> Result<u64, GgufError> {
        match self.u64(what)? {
            value if value > limit => Err(GgufError::Absurd { what: what.to_owned(), value, limit }),
            value => Ok(value),
        }
    }

    fn string(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes)
            .map_err(|_| GgufError::Value { key: what.to_owned(), expected: "UTF-8 text".into() })
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value<'a>, GgufError> {
        const ARRAY: u32 = 9;
        if kind != ARRAY {
            return self.scalar(key, kind);
        }
        let element = self.u32(key)?;
        if element == ARRAY {
            return Err(GgufError::Unsupported(format!("{key} is an array of arrays")));
        }
        let len = self.bounded(key, MAX_ARRAY_ELEMENTS)?;
        self.elements += len;
        if self.elements > MAX_ARRAY_ELEMENTS {
            let (value, limit) = (self.elements, MAX_ARRAY_ELEMENTS);
            return Err(GgufError::Absurd { what: "the elements of all arrays".into(), value, limit });
        }
        (0..len).map(|_| self.scalar(key, element)).collect::<Result<_, _>>().map(Value::Array)
    }

    fn scalar(&mut self, key: &str, kind: u32) -> Result<Value<'a>, GgufError> {
        let signed = |n: i64| u64::try_from(n).map_or(Value::Negative(n), Value::Unsigned);
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(key)?).into()),
            1 => signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(self.array::<1>(key)?[0] != 0),
            8 => Value::String(self.string(key)?),
            10 => Value::Unsigned(self.u64(key)?),
            11 => signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            _ => {
                let expected = format!("a value type of the format, found {kind}");
                return Err(GgufError::Value { key: key.to_owned(), expected });
            }
        })
    }

    fn tensor_info(&mut self) -> Result<Info<'a>, GgufError> {
        let name = self.string("a tensor's name")?;
        let dim_count = self.u32(name)?;
        if !(1..=4).contains(&dim_count) {
            let what = format!("the number of dimensions of {name}");
            return Err(GgufError::Absurd { what, value: dim_count.into(), limit: 4 });
        }
        let dims = (0..dim_count).map(|_| self.u64(name)).collect::<Result<_, _>>()?;
        Ok(Info { name, dims, kind: TensorType(self.u32(name)?), offset: self.u64(name)? })
    }
}
