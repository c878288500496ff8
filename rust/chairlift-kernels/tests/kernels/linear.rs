//! Linear layers against float64, and bit for bit against themselves.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut, bf16,
    gemm::linear::{Linear, LinearElement},
    memory::pool,
};
use proptest::prelude::*;

fn forward<T: LinearElement, O: Element>(layer: &Linear<T>, x: &[T]) -> Vec<O> {
    let rows = Rows::contiguous(x, layer.in_features());
    let mut out = vec![O::from_f32(f32::NAN); rows.len() * layer.out_features()];
    layer
        .forward(rows, RowsMut::contiguous(&mut out, layer.out_features()))
        .expect("the shapes fit");
    out
}

fn oracle<T: Element>(x: &[T], weight: &[T], bias: Option<&[T]>, k: usize) -> Vec<f64> {
    let (x, weight) = (wide(x), wide(weight));
    let bias = bias.map_or_else(|| vec![0.0; weight.len() / k], wide);
    let mut out = Vec::new();
    for x in x.chunks(k) {
        for (w, b) in weight.chunks(k).zip(&bias) {
            out.push(x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + b);
        }
    }
    out
}

fn check<T: LinearElement, O: Element>(m: usize, n: usize, k: usize, has_bias: bool) {
    let weight = numbers::<T>(1, n * k);
    let bias = has_bias.then(|| numbers::<T>(2, n));
    let x = numbers::<T>(3, m * k);
    let layer = Linear::new(Rows::contiguous(&weight, k), bias.as_deref()).expect("it fits");
    let out: Vec<O> = forward(&layer, &x);
    let expected = oracle(&x, &weight, bias.as_deref(), k);
    let what = format!("m {m}, n {n}, k {k}, bias {has_bias}");
    // A chain of k additions of products up to 4 rounds each time.
    let absolute = 2_f64.powi(-24) * 4.0 * (k as f64) * (k as f64).sqrt().max(1.0);
    assert_close(&out, &expected, rounding::<O>(), absolute, &what);
}

#[test]
fn linear_agrees_with_float64_at_every_edge() {
    for n in [1, 15, 16, 17, 31, 32, 33, 100] {
        for k in [1, 2, 3, 16, 32, 65, 96] {
            for m in [1, 2, 5, 6, 7, 13, 18] {
                check::<f32, f32>(m, n, k, n % 2 == 0);
                check::<bf16, bf16>(m, n, k, n % 2 == 1);
                check::<bf16, f32>(m, n, k, true);
            }
        }
    }
}

fn bits_of_a_row_do_not_depend_on_the_others<T, O>()
where
    T: LinearElement,
    O: Element,
{
    // Whether a machine multiplies tiles depends on `k`.
    for (n, k) in [(83, 150), (83, 96)] {
        bits_of_a_row_at::<T, O>(n, k);
    }
}

fn bits_of_a_row_at<T: LinearElement, O: Element>(n: usize, k: usize) {
    let weight = numbers::<T>(1, n * k);
    let layer = Linear::new(Rows::contiguous(&weight, k), None).expect("it fits");
    let x = numbers::<T>(2, 300 * k);
    let alone: Vec<u32> = x
        .chunks(k)
        .flat_map(|row| bits(&forward::<T, O>(&layer, row)))
        .collect();
    for m in (1..=70).chain([239, 240, 241, 300]) {
        for threads in [1, 2, 3] {
            pool::set_num_threads(threads);
            let out: Vec<O> = forward(&layer, &x[..m * k]);
            assert!(bits(&out) == alone[..m * n], "m {m}, {threads} threads");
        }
    }
}

#[test]
fn bits_of_a_float32_row_do_not_depend_on_the_others() {
    bits_of_a_row_do_not_depend_on_the_others::<f32, f32>();
}

#[test]
fn bits_of_a_bfloat16_row_do_not_depend_on_the_others() {
    bits_of_a_row_do_not_depend_on_the_others::<bf16, bf16>();
    bits_of_a_row_do_not_depend_on_the_others::<bf16, f32>();
}

#[test]
fn rows_may_lie_apart_and_gaps_are_left_alone() {
    let (m, n, k, stride) = (7, 19, 24, 40);
    let weight = numbers::<f32>(1, n * k);
    let layer = Linear::new(Rows::contiguous(&weight, k), None).expect("it fits");
    let x = numbers::<f32>(2, m * stride);
    let dense: Vec<f32> = x.chunks(stride).flat_map(|row| row[..k].to_vec()).collect();
    let expected: Vec<f32> = forward(&layer, &dense);
    let mut out = vec![-1.0; m * stride];
    let rows = Rows::new(&x, m, k, stride).expect("it fits");
    let out_rows = RowsMut::new(&mut out, m, n, stride).expect("it fits");
    layer.forward(rows, out_rows).expect("it fits");
    for (row, expected) in out.chunks(stride).zip(expected.chunks(n)) {
        assert_eq!(&row[..n], expected);
        assert!(
            row[n..]
                .iter()
                .all(|number| number.to_bits() == (-1.0_f32).to_bits())
        );
    }
}

#[test]
fn nan_stays_in_its_row() {
    let weight = numbers::<f32>(1, 20 * 30);
    let layer = Linear::new(Rows::contiguous(&weight, 30), None).expect("it fits");
    let mut x = numbers::<f32>(2, 9 * 30);
    let sound: Vec<f32> = forward(&layer, &x);
    x[4 * 30] = f32::NAN;
    let out: Vec<f32> = forward(&layer, &x);
    assert!(out[4 * 20..5 * 20].iter().all(|number| number.is_nan()));
    assert_eq!(out[..4 * 20], sound[..4 * 20]);
    assert_eq!(out[5 * 20..], sound[5 * 20..]);
}

#[test]
fn wrong_shapes_are_refused_by_name() {
    let weight = vec![0.0; 6];
    let rows = Rows::contiguous(&weight, 3);
    let refused = |bias: &[f32]| {
        Linear::new(rows, Some(bias))
            .err()
            .expect("wrong")
            .to_string()
    };
    assert_eq!(refused(&[0.0; 3]), "bias: expected out_features, 2, got 3");
    let layer = Linear::new(rows, None).expect("it fits");
    let mut out = vec![0.0_f32; 4];
    let error = layer.forward(
        Rows::contiguous(&[0.0; 4], 2),
        RowsMut::contiguous(&mut out, 2),
    );
    assert_eq!(
        error.expect_err("wrong").to_string(),
        "x: expected in_features, 3, got 2"
    );
    let error = layer.forward(
        Rows::contiguous(&[0.0; 3], 3),
        RowsMut::contiguous(&mut out, 2),
    );
    assert_eq!(
        error.expect_err("wrong").to_string(),
        "out: expected as many rows as x: 1, got 2"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn linear_agrees_with_float64(
        m in 1_usize..40, n in 1_usize..80, k in 1_usize..200, has_bias: bool,
    ) {
        check::<f32, f32>(m, n, k, has_bias);
        check::<bf16, bf16>(m, n, k, has_bias);
    }
}
