//! The decisions of a run: random numbers from one seed, or the bytes of a fuzzer.

/// How often something happens: so many times in 1,024 decisions.
pub(crate) type Rate = usize;

#[derive(Clone, Debug)]
pub(crate) enum Random {
    /// `SplitMix64` (Steele, Lea and Flood, OOPSLA '14): 64 bits of state, no end.
    Seed(u64),
    /// What is left; zeros follow.
    Bytes(std::vec::IntoIter<u8>),
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self::Seed(seed)
    }

    /// Every decision takes as few bytes as it can, so that a fuzzer's small change stays small.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Vec::from(bytes).into_iter())
    }

    /// Only zeros follow.
    pub(crate) fn is_spent(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.as_slice().is_empty())
    }

    pub(crate) fn next(&mut self) -> u64 {
        match self {
            Self::Seed(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                mix(*state)
            }
            Self::Bytes(bytes) => little_endian(bytes, 8),
        }
    }

    /// A number below `limit`, which is not 0. The bias is far below what a simulation sees.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        match self {
            Self::Seed(_) => ((u128::from(self.next()) * limit as u128) >> 64) as usize,
            Self::Bytes(bytes) => {
                let num_bits = usize::BITS - (limit - 1).leading_zeros();
                little_endian(bytes, num_bits.div_ceil(8) as usize) as usize % limit
            }
        }
    }

    /// A number from `min` to `max`, both included.
    pub(crate) fn between(&mut self, min: usize, max: usize) -> usize {
        min + self.below(max - min + 1)
    }

    /// As `between`, with every order of magnitude equally likely.
    pub(crate) fn magnitude(&mut self, min: usize, max: usize) -> usize {
        let doublings = (max / min).ilog2() as usize;
        let low = min << self.between(0, doublings);
        self.between(low, (2 * low - 1).min(max))
    }

    pub(crate) fn chance(&mut self, rate: Rate) -> bool {
        self.below(1024) < rate
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

fn little_endian(bytes: &mut std::vec::IntoIter<u8>, count: usize) -> u64 {
    let taken = bytes.by_ref().take(count).enumerate();
    taken.fold(0, |value, (i, byte)| value | u64::from(byte) << (8 * i))
}

/// The finaliser of `SplitMix64`: a bijection that spreads every bit over the whole word.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let drawn: Vec<_> = (0..1000).map(|_| random.between(3, 6)).collect();
        assert_eq!(
            (drawn.iter().min(), drawn.iter().max()),
            (Some(&3), Some(&6))
        );
        let drawn: Vec<_> = (0..9000).map(|_| random.magnitude(4, 4096)).collect();
        assert!(drawn.iter().all(|n| (4..=4096).contains(n)) && drawn.iter().any(|&n| n < 8));
    }

    #[test]
    fn bytes_are_numbers_until_they_are_spent() {
        let mut random = Random::from_bytes(&[7, 0x34, 0x12]);
        assert_eq!((random.below(256), random.below(1 << 16)), (7, 0x1234));
        assert!(random.is_spent());
        assert_eq!((random.below(1), random.next()), (0, 0));
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
    }
}
