//! Where a hash lies: a keyed mix of it, cut into segment and tag.
//!
//! Clients choose prompts, and so hashes; a secret key keeps them from choosing a segment. The mix is a bijection, so it makes no hashes
//! equal that were not. Segment (`s` bits) and tag together are `s + 42` bits of it, and these are the identity of a block: of `n` blocks
//! that are held, an absent one is taken for present with probability `n / 2^(s + 42)`.

/// Numbers without a pattern, of golden-ratio and multiplicative hashing: they carry every bit upwards, whatever the keys are.
const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 42;

/// The secret of an index, and how many segments it has.
#[derive(Clone, Copy)]
pub(crate) struct Mixer {
    keys: [u64; 2],
    segment_bits: u32,
}

/// The place of a block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) tag: u64,
}

impl Mixer {
    /// For `2^segment_bits` segments, 1 to 22 bits.
    pub(crate) fn new(keys: [u64; 2], segment_bits: u32) -> Self {
        Self { keys: [keys[0], keys[1] | 1], segment_bits }
    }

    #[inline]
    pub(crate) fn place(&self, hash: u64) -> Place {
        let once = (hash ^ self.keys[0]).wrapping_mul(ODD[0]);
        let twice = (once ^ (once >> 32)).wrapping_mul(self.keys[1]);
        let mixed = (twice ^ (twice >> 29)).wrapping_mul(ODD[1]);
        let segment = (mixed >> (64 - self.segment_bits)) as u32;
        Place { segment, tag: (mixed << self.segment_bits) >> (64 - TAG_BITS) }
    }
}

impl Place {
    /// The bucket, of `buckets`, where a search for it begins.
    #[inline]
    pub(crate) fn home(self, buckets: usize) -> usize {
        home(self.tag, buckets)
    }
}

/// The bucket, of `buckets`, where a search for a tag begins: by its upper 32 bits.
#[inline]
pub(crate) fn home(tag: u64, buckets: usize) -> usize {
    (((tag >> (TAG_BITS - 32)) * buckets as u64) >> 32) as usize
}

/// Scrambles a small number under a key; a bijection.
pub(crate) fn scramble(number: u64, key: u64) -> u64 {
    let once = (number ^ key).wrapping_mul(ODD[0]);
    let twice = (once ^ (once >> 32)).wrapping_mul(ODD[1]);
    twice ^ (twice >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_and_tag_are_the_upper_bits_of_the_mix() {
        let wide = Mixer::new([11, 13], 14);
        let narrow = Mixer::new([11, 13], 4);
        for hash in 0..1_000u64 {
            let (wide, narrow) = (wide.place(hash), narrow.place(hash));
            assert!(wide.segment < 1 << 14 && wide.tag < 1 << TAG_BITS);
            assert_eq!(wide.segment >> 10, narrow.segment);
            assert_eq!(wide.tag >> 10 | u64::from(wide.segment & 0x3ff) << 32, narrow.tag);
            assert!(wide.home(7) < 7);
        }
    }

    #[test]
    fn neighbouring_hashes_spread_evenly() {
        for keys in [[0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321], [0, 0], [1, 2]] {
            let mixer = Mixer::new(keys, 4);
            let mut counts = [0u32; 16];
            let mut tags = std::collections::BTreeSet::new();
            for hash in 0..16_000 {
                let place = mixer.place(hash);
                counts[place.segment as usize] += 1;
                tags.insert((place.segment, place.tag));
            }
            assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{keys:?}: {counts:?}");
            assert_eq!(tags.len(), 16_000, "{keys:?}");
        }
    }
}
