//! A plain Llama in f64, written from the published equations and not from the engine: dense, one
//! token at a time, its own reading of the file. With [`Arithmetic::Quantised`] weights and
//! activations are rounded to 8 bits per block of 32, as the engine declares, and nothing else
//! changes: the difference of the two is what the rounding costs.

use std::collections::HashMap;

/// What is rounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arithmetic {
    Exact,
    Quantised,
}

/// A deliberate mistake, to show that the comparison would see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mistake {
    None,
    SplitHalfRope,
    NoFeedForwardNorm,
    HeadsStriped,
}

struct Matrix {
    cols: usize,
    values: Vec<f64>,
}

pub(crate) struct Reference {
    numbers: HashMap<String, f64>,
    matrices: HashMap<String, Matrix>,
    arithmetic: Arithmetic,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        head
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }
    fn string(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8(self.bytes(len).to_vec()).unwrap()
    }
    /// The value as a number where it is one.
    fn value(&mut self, kind: u32) -> Option<f64> {
        match kind {
            4 => Some(self.u32().into()),
            5 => Some(f64::from(self.u32() as i32)),
            6 => Some(f32::from_bits(self.u32()).into()),
            7 => Some(self.bytes(1)[0].into()),
            8 => {
                self.string();
                None
            }
            9 => {
                let (kind, len) = (self.u32(), self.u64());
                for _ in 0..len {
                    self.value(kind);
                }
                None
            }
            other => panic!("value type {other}"),
        }
    }
}

fn f16(bytes: &[u8]) -> f64 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f64()
}

fn decode(kind: u32, data: &[u8], count: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(count);
    match kind {
        0 => out
            .extend(data.chunks(4).take(count).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))),
        1 => out.extend(data.chunks(2).take(count).map(f16)),
        2 => data.chunks(18).take(count / 32).for_each(|b| {
            out.extend((0..16).map(|i| f16(b) * (f64::from(b[2 + i] & 15) - 8.0)));
            out.extend((0..16).map(|i| f16(b) * (f64::from(b[2 + i] >> 4) - 8.0)));
        }),
        3 => data.chunks(20).take(count / 32).for_each(|b| {
            out.extend((0..16).map(|i| f16(b) * f64::from(b[4 + i] & 15) + f16(&b[2..])));
            out.extend((0..16).map(|i| f16(b) * f64::from(b[4 + i] >> 4) + f16(&b[2..])));
        }),
        8 => data.chunks(34).take(count / 32).for_each(|b| {
            out.extend((0..32).map(|i| f16(b) * f64::from(b[2 + i] as i8)));
        }),
        other => panic!("tensor type {other}"),
    }
    out
}

/// Rounds to 8 bits per block of 32, the scale of weights to 16-bit floats first.
fn round_blocks(values: &mut [f64], half_scales: bool) {
    for block in values.chunks_mut(32) {
        let widest = block.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        let scale = if half_scales { half::f16::from_f64(widest / 127.0).to_f64() } else { widest / 127.0 };
        if scale > 0.0 {
            block.iter_mut().for_each(|v| *v = (*v / scale).round().clamp(-127.0, 127.0) * scale);
        }
    }
}

impl Reference {
    pub(crate) fn new(file: &[u8], arithmetic: Arithmetic) -> Self {
        let mut cursor = Cursor(file);
        assert_eq!(cursor.bytes(4), b"GGUF");
        cursor.u32();
        let (tensors, pairs) = (cursor.u64(), cursor.u64());
        let mut numbers = HashMap::new();
        for _ in 0..pairs {
            let key = cursor.string();
            let kind = cursor.u32();
            if let Some(number) = cursor.value(kind) {
                numbers.insert(key, number);
            }
        }
        let infos: Vec<_> = (0..tensors)
            .map(|_| {
                let name = cursor.string();
                let dims: Vec<usize> = (0..cursor.u32()).map(|_| cursor.u64() as usize).collect();
                (name, dims, cursor.u32(), cursor.u64() as usize)
            })
            .collect();
        let data = &file[(file.len() - cursor.0.len()).next_multiple_of(32)..];
        let matrices = infos
            .into_iter()
            .map(|(name, dims, kind, offset)| {
                let mut values = decode(kind, &data[offset..], dims.iter().product());
                if arithmetic == Arithmetic::Quantised && dims.len() == 2 {
                    round_blocks(&mut values, true);
                }
                (name, Matrix { cols: dims[0], values })
            })
            .collect();
        Self { numbers, matrices, arithmetic }
    }

    fn number(&self, key: &str) -> f64 {
        self.numbers[&format!("llama.{key}")]
    }

    fn multiply(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let matrix = &self.matrices[name];
        let mut x = x.to_vec();
        if self.arithmetic == Arithmetic::Quantised {
            round_blocks(&mut x, false);
        }
        matrix.values.chunks(matrix.cols).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let root = (mean + self.number("attention.layer_norm_rms_epsilon")).sqrt();
        x.iter().zip(&self.matrices[name].values).map(|(x, w)| x / root * w).collect()
    }

    fn turn(&self, row: &mut [f64], head_dim: usize, position: usize, mistake: Mistake) {
        let factor = self.numbers.get("llama.rope.scaling.factor").copied().unwrap_or(1.0);
        for head in row.chunks_mut(head_dim) {
            for pair in 0..head_dim / 2 {
                let frequency = self.number("rope.freq_base").powf(-2.0 * pair as f64 / head_dim as f64);
                let (sin, cos) = (position as f64 / factor * frequency).sin_cos();
                let (i, j) = match mistake {
                    Mistake::SplitHalfRope => (pair, pair + head_dim / 2),
                    _ => (2 * pair, 2 * pair + 1),
                };
                (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[i] * sin + head[j] * cos);
            }
        }
    }

    /// Logits after each of `tokens`.
    pub(crate) fn logits(&self, tokens: &[u32], mistake: Mistake) -> Vec<Vec<f64>> {
        let layers = self.number("block_count") as usize;
        let heads = self.number("attention.head_count") as usize;
        let kv_heads = self.number("attention.head_count_kv") as usize;
        let embedding = &self.matrices["token_embd.weight"];
        let head_dim = embedding.cols / heads;
        let mut cache = vec![(vec![], vec![]); layers];
        let mut all = vec![];
        for (position, token) in tokens.iter().enumerate() {
            let mut x = embedding.values[*token as usize * embedding.cols..][..embedding.cols].to_vec();
            for (layer, (keys, values)) in cache.iter_mut().enumerate() {
                let name = |part: &str| format!("blk.{layer}.{part}.weight");
                let n = self.norm(&name("attn_norm"), &x);
                let mut q = self.multiply(&name("attn_q"), &n);
                let mut k = self.multiply(&name("attn_k"), &n);
                self.turn(&mut q, head_dim, position, mistake);
                self.turn(&mut k, head_dim, position, mistake);
                keys.push(k);
                values.push(self.multiply(&name("attn_v"), &n));
                let mut attended = vec![];
                for head in 0..heads {
                    let kv_head = match mistake {
                        Mistake::HeadsStriped => head % kv_heads,
                        _ => head / (heads / kv_heads),
                    };
                    let q = &q[head * head_dim..][..head_dim];
                    let at = kv_head * head_dim;
                    let score = |k: &Vec<f64>| q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum::<f64>();
                    let scores: Vec<f64> = keys.iter().map(|k| score(k) / (head_dim as f64).sqrt()).collect();
                    let widest = scores.iter().fold(f64::MIN, |a, s| a.max(*s));
                    let weights: Vec<f64> = scores.iter().map(|s| (s - widest).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    attended.extend((0..head_dim).map(|d| {
                        weights.iter().zip(values.iter()).map(|(w, v)| w * v[at + d]).sum::<f64>() / sum
                    }));
                }
                let out = self.multiply(&name("attn_output"), &attended);
                x.iter_mut().zip(out).for_each(|(x, o)| *x += o);
                let n = match mistake {
                    Mistake::NoFeedForwardNorm => x.clone(),
                    _ => self.norm(&name("ffn_norm"), &x),
                };
                let gate = self.multiply(&name("ffn_gate"), &n);
                let up = self.multiply(&name("ffn_up"), &n);
                let hidden: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let out = self.multiply(&name("ffn_down"), &hidden);
                x.iter_mut().zip(out).for_each(|(x, o)| *x += o);
            }
            let output = if self.matrices.contains_key("output.weight") {
                "output.weight"
            } else {
                "token_embd.weight"
            };
            all.push(self.multiply(output, &self.norm("output_norm.weight", &x)));
        }
        all
    }
}
