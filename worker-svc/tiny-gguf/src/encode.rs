//! Random values and the tensor types they can be written in.

use half::f16;

/// Values of one quantised block.
const BLOCK: usize = 32;

/// How matrices are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Blocks of 32: `d * (q - 8)` with 4-bit `q`.
    Q4_0,
    /// Blocks of 32: `d * q + m` with 4-bit `q`.
    Q4_1,
    /// Blocks of 32: `d * q` with 8-bit `q`.
    Q8_0,
}

impl TensorType {
    /// The format's number of the type.
    pub(crate) fn id(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q8_0 => 8,
        }
    }

    /// Encodes `values`; for the block types their count is a multiple of 32.
    pub(crate) fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            TensorType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            TensorType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            TensorType::Q4_0 => values.chunks_exact(BLOCK).flat_map(q4_0).collect(),
            TensorType::Q4_1 => values.chunks_exact(BLOCK).flat_map(q4_1).collect(),
            TensorType::Q8_0 => values.chunks_exact(BLOCK).flat_map(q8_0).collect(),
        }
    }
}

/// Two 4-bit values a byte: the low half holds values 0 to 15 of the block, the high half 16 to 31.
fn nibbles(block: &[f32], to_q: impl Fn(f32) -> f32) -> impl Iterator<Item = u8> {
    let q: Vec<u8> = block.iter().map(|v| to_q(*v).round().clamp(0.0, 15.0) as u8).collect();
    (0..BLOCK / 2).map(move |i| q[i] | q[i + BLOCK / 2] << 4)
}

fn q4_0(block: &[f32]) -> Vec<u8> {
    let widest = block.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    let d = f16::from_f32(widest / -8.0);
    let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
    d.to_le_bytes().into_iter().chain(nibbles(block, |v| v * inverse + 8.0)).collect()
}

fn q4_1(block: &[f32]) -> Vec<u8> {
    let (min, max) = block.iter().fold((f32::MAX, f32::MIN), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let (d, m) = (f16::from_f32((max - min) / 15.0), f16::from_f32(min));
    let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
    let header = d.to_le_bytes().into_iter().chain(m.to_le_bytes());
    header.chain(nibbles(block, |v| (v - m.to_f32()) * inverse)).collect()
}

fn q8_0(block: &[f32]) -> Vec<u8> {
    let widest = block.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let d = f16::from_f32(widest / 127.0);
    let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
    let quants = block.iter().map(|v| (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8);
    d.to_le_bytes().into_iter().chain(quants).collect()
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Near normal with deviation 1: the sum of twelve uniforms of variance 1/3, halved. No
    /// transcendental function, so the bytes are the same on every machine.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() * 0.5
    }
}
