//! The exponentials that kernels use: of e, and of 2 where powers of e can be written so.

use crate::isa::Isa;

/// Below this, the result is zero: `exp` leaves the normal numbers.
const LOW: f32 = -87.336_54;
/// Above this, the result is infinite.
const HIGH: f32 = 88.376_26;

/// Below this, the result of `exp2` is zero.
const LOW_OF_2: f32 = -126.0;

/// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `e^x` within 2 units in the last place; 0 far below, infinity far above, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; a polynomial gives `e^r` (Cephes, `expf`) and the
/// exponent bits are `2^n`. Branch-free: a loop over it becomes vector code in which each lane and
/// each remainder computes the same bits, which a library's `exp` does not promise.
#[inline(always)]
pub fn exp<I: Isa>(x: f32) -> f32 {
    // Written as selects that keep NaN.
    let y = exp_of_bounded::<I>(if x > HIGH { HIGH } else { x });
    if x > HIGH { f32::INFINITY } else { y }
}

/// [`exp`] of what is not above 88.
#[inline(always)]
fn exp_of_bounded<I: Isa>(x: f32) -> f32 {
    // The high part of ln 2 has few bits, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const P: [f32; 6] = [
        1.987_569_2e-4,
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5.0e-1,
    ];
    let t = if x < LOW { LOW } else { x };
    let shifted = I::mul_add(t, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = I::mul_add(n, -LN2_HIGH, t);
    let r = I::mul_add(n, -LN2_LOW, r);
    let p = I::mul_add(P[0], r, P[1]);
    let p = I::mul_add(p, r, P[2]);
    let p = I::mul_add(p, r, P[3]);
    let p = I::mul_add(p, r, P[4]);
    let p = I::mul_add(p, r, P[5]);
    let p = I::mul_add(p, r * r, r) + 1.0;
    let y = p * power_of_2(shifted);
    if x < LOW { 0.0 } else { y }
}

/// `2^x` of what is below 127, within 2 units in the last place; 0 far below, NaN for NaN.
///
/// Takes half of the operations of [`exp`]: `x = n + r` needs no `ln 2` (Cephes, `exp2f`).
#[inline(always)]
pub fn exp2<I: Isa>(x: f32) -> f32 {
    const P: [f32; 6] = [
        1.535_336_2e-4,
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        2.402_264_7e-1,
        6.931_472e-1,
    ];
    let t = if x < LOW_OF_2 { LOW_OF_2 } else { x };
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    let p = I::mul_add(P[0], r, P[1]);
    let p = I::mul_add(p, r, P[2]);
    let p = I::mul_add(p, r, P[3]);
    let p = I::mul_add(p, r, P[4]);
    let p = I::mul_add(p, r, P[5]);
    let p = I::mul_add(p, r, 1.0);
    let y = p * power_of_2(shifted);
    if x < LOW_OF_2 { 0.0 } else { y }
}

/// `tanh x` within 3e-7 of the exact value, and of that of the exact value near 0; NaN for NaN.
#[inline(always)]
pub fn tanh<I: Isa>(x: f32) -> f32 {
    // Odd powers of the series: near 0 the quotient below would cancel digits.
    const P: [f32; 5] = [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0];
    const SMALL: f32 = 0.3;
    // Beyond this the result is 1; written as selects that keep NaN.
    const MAX: f32 = 12.0;
    let t = if x > MAX { MAX } else { x };
    let t = if t < -MAX { -MAX } else { t };
    let power = exp2::<I>(t * (2.0 * std::f32::consts::LOG2_E));
    let quotient = (power - 1.0) / (power + 1.0);
    let square = t * t;
    let p = I::mul_add(P[0], square, P[1]);
    let p = I::mul_add(p, square, P[2]);
    let p = I::mul_add(p, square, P[3]);
    let p = I::mul_add(p, square, P[4]);
    if square < SMALL * SMALL {
        t * p
    } else {
        quotient
    }
}

/// `2^n`, where `n + ROUND` is given.
#[inline(always)]
fn power_of_2(shifted: f32) -> f32 {
    f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::BLOCK;
    use crate::isa::dispatch::{Kernel, dispatch};

    struct Exp<'a>(&'a [f32]);

    /// By single numbers, and by blocks.
    struct Exp2<'a>(&'a [f32]);

    impl Kernel for Exp2<'_> {
        type Output = [Vec<f32>; 2];

        #[inline(always)]
        fn run<I: Isa>(self) -> [Vec<f32>; 2] {
            let numbers = self.0.iter().map(|&x| exp2::<I>(x)).collect();
            let mut blocks = self.0.to_vec();
            for block in blocks.as_chunks_mut().0 {
                I::exp2_block(block);
            }
            [numbers, blocks]
        }
    }

    impl Kernel for Exp<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<f32> {
            self.0.iter().map(|&x| exp::<I>(x)).collect()
        }
    }

    #[test]
    fn exp_is_close_to_float64() {
        let x: Vec<f32> = (-87_000..88_000).map(|i| i as f32 * 1e-3).collect();
        for (&x, y) in x.iter().zip(dispatch(Exp(&x))) {
            let exact = f64::from(x).exp();
            let error = (f64::from(y) - exact).abs() / exact;
            assert!(error < 2.5e-7, "exp({x}) = {y}, error {error:e}");
        }
    }

    #[test]
    fn exp2_is_close_to_float64() {
        let x: Vec<f32> = (-125_999..126_897).map(|i| i as f32 * 1e-3).collect();
        assert!(x.len().is_multiple_of(BLOCK));
        for results in dispatch(Exp2(&x)) {
            for (&x, y) in x.iter().zip(results) {
                let exact = f64::from(x).exp2();
                let error = (f64::from(y) - exact).abs() / exact;
                assert!(error < 2.5e-7, "exp2({x}) = {y}, error {error:e}");
            }
        }
    }

    struct Tanh<'a>(&'a [f32]);

    impl Kernel for Tanh<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<f32> {
            self.0.iter().map(|&x| tanh::<I>(x)).collect()
        }
    }

    #[test]
    fn tanh_is_close_to_float64() {
        let x: Vec<f32> = (-20_000..20_000).map(|i| i as f32 * 1e-3).collect();
        for (&x, y) in x.iter().zip(dispatch(Tanh(&x))) {
            let exact = f64::from(x).tanh();
            let error = (f64::from(y) - exact).abs();
            assert!(error < 3e-7, "tanh({x}) = {y}, error {error:e}");
            assert!(
                x.abs() > 0.3 || error <= 4e-7 * exact.abs(),
                "tanh({x}) = {y}"
            );
        }
        let ends = [f32::INFINITY, f32::NEG_INFINITY, 1e-30, f32::NAN];
        let y = dispatch(Tanh(&ends));
        assert_eq!(y[..3], [1.0, -1.0, 1e-30]);
        assert!(y[3].is_nan());
    }

    #[test]
    fn exp2_has_the_right_ends() {
        let mut x = [0.0; BLOCK];
        x[..5].copy_from_slice(&[-0.0, f32::NAN, f32::NEG_INFINITY, -1e30, -127.0]);
        for ends in dispatch(Exp2(&x)) {
            assert_eq!(ends[0], 1.0);
            assert!(ends[1].is_nan());
            assert_eq!(ends[2..4], [0.0; 2]);
            assert!(ends[4] < f32::MIN_POSITIVE, "zero, or subnormal");
            assert_eq!(ends[5..], [1.0; BLOCK - 5]);
        }
    }

    #[test]
    fn exp_has_the_right_ends() {
        let x = [
            f32::NEG_INFINITY,
            -1e30,
            -100.0,
            0.0,
            -0.0,
            100.0,
            f32::INFINITY,
            f32::NAN,
        ];
        let y = dispatch(Exp(&x));
        assert_eq!(
            y[..7],
            [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY]
        );
        assert!(y[7].is_nan());
    }
}
