//! Float64 oracles and made-up numbers for the kernel tests.
#![allow(
    dead_code,
    reason = "each test binary compiles it and uses a part of it"
)]

use chairlift_kernels::{Element, sampling::philox::philox4x32};

/// Reproducible numbers in about [-2, 2], already rounded to the type.
pub(crate) fn numbers<T: Element>(seed: u32, len: usize) -> Vec<T> {
    let mut numbers = Vec::with_capacity(len + 4);
    let mut counter = 0;
    while numbers.len() < len {
        let words = philox4x32([counter, seed, 0, 0], [1, 2]);
        numbers.extend(words.map(|word| {
            let unit = f64::from(word) / f64::from(u32::MAX);
            T::from_f32((4.0 * unit - 2.0) as f32)
        }));
        counter += 1;
    }
    numbers.truncate(len);
    numbers
}

/// A permutation of `0..len`.
pub(crate) fn permutation(seed: u32, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let keys: Vec<f32> = numbers(seed, len);
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    order
}

pub(crate) fn wide<T: Element>(numbers: &[T]) -> Vec<f64> {
    numbers
        .iter()
        .map(|number| f64::from(number.to_f32()))
        .collect()
}

pub(crate) fn bits<T: Element>(numbers: &[T]) -> Vec<u32> {
    numbers
        .iter()
        .map(|number| number.to_f32().to_bits())
        .collect()
}

/// Half the distance between neighbouring numbers of the type, relative to the larger.
pub(crate) fn rounding<T: Element>() -> f64 {
    if size_of::<T>() == 2 {
        2_f64.powi(-8)
    } else {
        2_f64.powi(-24)
    }
}

/// Fails where `got` is further from `expected` than `relative` of it plus `absolute`.
pub(crate) fn assert_close<T: Element>(
    got: &[T],
    expected: &[f64],
    relative: f64,
    absolute: f64,
    what: &str,
) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in wide(got).iter().zip(expected).enumerate() {
        let error = (got - expected).abs();
        assert!(
            error <= relative * expected.abs() + absolute,
            "{what}: [{index}] is {got}, expected {expected}"
        );
    }
}
