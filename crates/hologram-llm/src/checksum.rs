//! A checksum of 64 bits: it detects damage and tells files apart, but resists nobody who forges one.

/// The checksum of the bytes added so far. How they are divided does not matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    value: u64,
    /// Bytes that do not yet fill a word, and how many.
    rest: [u8; 8],
    filled: usize,
    length: u64,
}

impl Checksum {
    pub fn new() -> Checksum {
        Checksum { value: 0xcbf2_9ce4_8422_2325, rest: [0; 8], filled: 0, length: 0 }
    }

    fn word(&mut self, word: u64) {
        self.value = (self.value ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.value ^= self.value >> 32;
    }

    pub fn add(mut self, mut bytes: &[u8]) -> Checksum {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() && self.filled > 0 {
            self.rest[self.filled] = bytes[0];
            (self.filled, bytes) = ((self.filled + 1) % 8, &bytes[1..]);
            if self.filled == 0 {
                self.word(u64::from_le_bytes(self.rest));
            }
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.rest[..rest.len()].copy_from_slice(rest);
            self.filled = rest.len();
        }
        self
    }

    /// Adds the length and some bytes of a file, spread over all of it.
    pub fn add_sample(self, file: &[u8]) -> Checksum {
        const START: usize = 1 << 16;
        const SAMPLES: usize = 1024;
        let mut sum = self.add(&(file.len() as u64).to_le_bytes()).add(&file[..file.len().min(START)]);
        let step = (file.len() / SAMPLES).max(64);
        for sample in file.chunks(step) {
            sum = sum.add(&sample[..sample.len().min(64)]);
        }
        sum
    }

    pub fn finish(mut self) -> u64 {
        self.rest[self.filled..].fill(0);
        self.word(u64::from_le_bytes(self.rest));
        self.word(self.length);
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    #[test]
    fn every_byte_counts_however_they_are_divided() {
        let bytes: Vec<u8> = (0..100u8).map(|i| i.wrapping_mul(37)).collect();
        let whole = Checksum::new().add(&bytes).finish();
        for cut in 0..100 {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(Checksum::new().add(a).add(b).finish(), whole, "{cut}");
            assert_ne!(Checksum::new().add(a).finish(), whole, "{cut}");
            for bit in [1, 0x80] {
                let mut other = bytes.clone();
                other[cut] ^= bit;
                assert_ne!(Checksum::new().add(&other).finish(), whole, "{cut}");
            }
        }
        assert_ne!(Checksum::new().add(&[0]).finish(), Checksum::new().finish());
    }
}
