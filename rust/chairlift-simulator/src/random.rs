//! Random numbers from one seed: `SplitMix64` (Steele, Lea and Flood, OOPSLA '14), 64 bits of state.

/// How often something happens: so many times in 1,024 decisions.
pub(crate) type Rate = usize;

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `limit`, which is not 0. The bias of the multiplication is far below what a simulation sees.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// A number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// As `between`, with every order of magnitude equally likely.
    pub(crate) fn magnitude(&mut self, least: usize, most: usize) -> usize {
        let doublings = (most / least).ilog2() as usize;
        let low = least << self.between(0, doublings);
        self.between(low, (2 * low - 1).min(most))
    }

    pub(crate) fn chance(&mut self, rate: Rate) -> bool {
        self.below(1024) < rate
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
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
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
    }
}
