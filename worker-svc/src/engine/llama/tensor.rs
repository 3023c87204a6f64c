//! Tensor types of GGUF files, and how their blocks become floats.
//!
//! | type | block | bytes | value |
//! |---|---|---|---|
//! | F32, F16 | 1 | 4, 2 | itself |
//! | Q4_0 | 32 | d f16, 16 × two q | `d * (q - 8)` |
//! | Q4_1 | 32 | d f16, m f16, 16 × two q | `d * q + m` |
//! | Q8_0 | 32 | d f16, 32 × q i8 | `d * q` |
//!
//! Of the two 4-bit values in byte `i`, the low half is value `i` of the block, the high half value
//! `i + 16`.

use std::fmt;

use half::f16;

/// Values of a quantised block, here and in the files.
pub(super) const BLOCK: usize = 32;

/// A type number as a file has it, supported or not. Displays as the format's own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType(pub u32);

/// A tensor type that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 4-bit blocks, symmetric.
    Q4_0,
    /// 4-bit blocks with a minimum.
    Q4_1,
    /// 8-bit blocks, symmetric.
    Q8_0,
}

impl TensorType {
    /// The type, if it can be read.
    pub fn supported(self) -> Option<Kind> {
        Some(match self.0 {
            0 => Kind::F32,
            1 => Kind::F16,
            2 => Kind::Q4_0,
            3 => Kind::Q4_1,
            8 => Kind::Q8_0,
            _ => return None,
        })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "F32",
            1 => "F16",
            2 => "Q4_0",
            3 => "Q4_1",
            6 => "Q5_0",
            7 => "Q5_1",
            8 => "Q8_0",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            12 => "Q4_K",
            13 => "Q5_K",
            14 => "Q6_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            30 => "BF16",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            other => return write!(f, "number {other}"),
        };
        f.write_str(name)
    }
}

impl Kind {
    /// The names of all of them, for messages.
    pub const SUPPORTED: &str = "F32, F16, Q4_0, Q4_1, Q8_0";

    /// Values of a block.
    pub fn block_len(self) -> usize {
        match self {
            Kind::F32 | Kind::F16 => 1,
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 => BLOCK,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F16 => 2,
            Kind::Q4_0 => 18,
            Kind::Q4_1 => 20,
            Kind::Q8_0 => 34,
        }
    }

    /// Decodes whole blocks: `to.len()` values out of the bytes that hold exactly them.
    ///
    /// # Panics
    /// When the lengths do not belong together.
    pub fn decode(self, data: &[u8], to: &mut [f32]) {
        assert_eq!(data.len() / self.block_bytes() * self.block_len(), to.len(), "whole blocks");
        let blocks = data.chunks_exact(self.block_bytes()).zip(to.chunks_exact_mut(self.block_len()));
        match self {
            Kind::F32 => blocks.for_each(|(b, v)| v[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Kind::F16 => blocks.for_each(|(b, v)| v[0] = half_at(b, 0)),
            Kind::Q4_0 => blocks.for_each(|(b, v)| {
                let d = half_at(b, 0);
                nibbles(&b[2..], v, |q| d * (q - 8.0));
            }),
            Kind::Q4_1 => blocks.for_each(|(b, v)| {
                let (d, m) = (half_at(b, 0), half_at(b, 2));
                nibbles(&b[4..], v, |q| d * q + m);
            }),
            Kind::Q8_0 => blocks.for_each(|(b, v)| {
                let d = half_at(b, 0);
                v.iter_mut().zip(&b[2..]).for_each(|(v, q)| *v = d * f32::from(*q as i8));
            }),
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn nibbles(packed: &[u8], to: &mut [f32], value: impl Fn(f32) -> f32) {
    let (low, high) = to.split_at_mut(BLOCK / 2);
    for ((byte, low), high) in packed.iter().zip(low).zip(high) {
        *low = value(f32::from(byte & 15));
        *high = value(f32::from(byte >> 4));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_blocks_decode_low_halves_first() {
        let mut block = vec![];
        block.extend(f16::from_f32(0.5).to_le_bytes());
        block.extend(f16::from_f32(-1.0).to_le_bytes());
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let mut values = [0.0; 32];
        Kind::Q4_1.decode(&block, &mut values);
        assert_eq!((values[0], values[15], values[16], values[31]), (-1.0, 6.5, 6.5, -1.0));
        block.drain(2..4);
        Kind::Q4_0.decode(&block, &mut values);
        assert_eq!((values[0], values[15], values[16], values[31]), (-4.0, 3.5, 3.5, -4.0));
    }

    #[test]
    fn eight_bit_blocks_decode_signed() {
        let mut block = f16::from_f32(0.25).to_le_bytes().to_vec();
        block.extend((0..32).map(|i| (i - 16) as i8 as u8));
        let mut values = [0.0; 32];
        Kind::Q8_0.decode(&block, &mut values);
        assert_eq!((values[0], values[16], values[31]), (-4.0, 0.0, 3.75));
    }
}
