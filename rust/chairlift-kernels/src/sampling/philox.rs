//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011).
//!
//! A draw is a pure function of its coordinates, so there is no generator state to keep, to save or
//! to order: a request draws the same numbers in any batch and after any preemption.

/// A uniform number in [0, 1) with 53 random bits.
///
/// `seed` belongs to the request, `index` tells its answers apart, `position` is that of the token.
pub fn uniform(seed: u64, index: u32, position: u32) -> f64 {
    number(seed, [position, index, 0, 0])
}

/// Another uniform number in [0, 1), independent of [`uniform`] for the same token.
pub fn second_uniform(seed: u64, index: u32, position: u32) -> f64 {
    number(seed, [position, index, 1, 0])
}

fn number(seed: u64, counter: [u32; 4]) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox4x32(counter, key);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * 2_f64.powi(-53)
}

/// Ten rounds of Philox over a 128-bit counter.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let a = MULTIPLIERS[0] * u64::from(counter[0]);
        let b = MULTIPLIERS[1] * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        // Random123, `kat_vectors`.
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_is_uniform_along_each_coordinate() {
        let along: [fn(u32) -> f64; 3] = [
            |i| uniform(u64::from(i), 0, 0),
            |i| uniform(7, i, 0),
            |i| uniform(7, 0, i),
        ];
        for draw in along {
            let mut bins = [0_u32; 16];
            for i in 0..16_000 {
                let u = draw(i);
                assert!((0.0..1.0).contains(&u));
                bins[(u * 16.0) as usize] += 1;
            }
            // 1,000 expected in each, standard deviation 31.
            assert!(
                bins.iter().all(|&count| count.abs_diff(1000) < 160),
                "{bins:?}"
            );
        }
    }
}
