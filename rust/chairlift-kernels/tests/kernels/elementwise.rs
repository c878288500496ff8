//! Norms, rotary embedding and the softmax algebra against float64.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut,
    attention::{
        kv_format::Numbers,
        softmax::SoftmaxState,
        span_types::{Block, PerToken, SPAN, Scales, Span},
    },
    bf16,
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    ops::{
        norm::{add_layer_norm, layer_norm, rms_norm},
        rope::{HeadNorm, Rotation, rope},
    },
};
use std::ops::Range;

const WIDTHS: [usize; 9] = [1, 7, 8, 15, 16, 17, 33, 64, 1000];

fn norm<T: Element>(x: &[T], weight: &[T]) -> Vec<T> {
    let mut out = vec![T::from_f32(f32::NAN); x.len()];
    let width = weight.len();
    rms_norm(
        Rows::contiguous(x, width),
        weight,
        1e-5,
        0.0,
        RowsMut::contiguous(&mut out, width),
    )
    .expect("the shapes fit");
    out
}

fn norm_oracle(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let square: f64 = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (square + 1e-5).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

fn norm_agrees<T: Element>() {
    for width in WIDTHS {
        let (x, weight) = (numbers::<T>(1, 5 * width), numbers::<T>(2, width));
        let expected: Vec<f64> = wide(&x)
            .chunks(width)
            .flat_map(|row| norm_oracle(row, &wide(&weight)))
            .collect();
        let out = norm(&x, &weight);
        assert_close(
            &out,
            &expected,
            1.01 * rounding::<T>() + 3e-7,
            1e-30,
            "rms_norm",
        );
        for (row, out) in x.chunks(width).zip(out.chunks(width)) {
            assert_eq!(bits(&norm(row, &weight)), bits(out), "alone, width {width}");
        }
    }
}

#[test]
fn rms_norm_agrees_with_float64() {
    norm_agrees::<f32>();
    norm_agrees::<bf16>();
}

#[test]
fn each_group_of_a_row_is_normed_apart() {
    let (x, weight) = (numbers::<f32>(1, 120), numbers::<f32>(2, 20));
    let mut out = vec![f32::NAN; 120];
    let rows = RowsMut::contiguous(&mut out, 60);
    rms_norm(Rows::contiguous(&x, 60), &weight, 1e-5, 0.0, rows).expect("it fits");
    assert_eq!(bits(&out), bits(&norm(&x, &weight)));
    for wrong in [&weight[..0], &weight[..19]] {
        let rows = RowsMut::contiguous(&mut out, 60);
        assert!(rms_norm(Rows::contiguous(&x, 60), wrong, 1e-5, 0.0, rows).is_err());
    }
}

fn layer_norm_oracle(x: &[f64], weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + 1e-5).sqrt();
    let bias = |d: usize| bias.map_or(0.0, |bias| bias[d]);
    let numbers = x.iter().zip(weight).enumerate();
    numbers
        .map(|(d, (x, w))| (x - mean) * scale * w + bias(d))
        .collect()
}

fn layer_norm_agrees<T: Element>(has_bias: bool) {
    for width in WIDTHS {
        let (x, update) = (numbers::<T>(1, 5 * width), numbers::<T>(4, 5 * width));
        let (weight, bias) = (numbers::<T>(2, width), numbers::<T>(3, width));
        let (bias, wide_bias) = (has_bias.then_some(&bias[..]), wide(&bias));
        let norm = |x: &[T]| {
            let mut out = vec![T::from_f32(f32::NAN); x.len()];
            let rows = RowsMut::contiguous(&mut out, width);
            layer_norm(Rows::contiguous(x, width), &weight, bias, 1e-5, rows).expect("it fits");
            out
        };
        let out = norm(&x);
        let wide_bias = has_bias.then_some(&wide_bias[..]);
        let expected: Vec<f64> = wide(&x)
            .chunks(width)
            .flat_map(|row| layer_norm_oracle(row, &wide(&weight), wide_bias))
            .collect();
        // A mean of so many numbers, each with an error of its last place, is subtracted from each.
        assert_close(
            &out,
            &expected,
            1.01 * rounding::<T>() + 1e-6,
            3e-6,
            "layer_norm",
        );
        for (row, out) in x.chunks(width).zip(out.chunks(width)) {
            assert_eq!(bits(&norm(row)), bits(out), "alone, width {width}");
        }
        let sums = x.iter().zip(&update);
        let sums: Vec<T> = sums
            .map(|(x, u)| T::from_f32(x.to_f32() + u.to_f32()))
            .collect();
        let (mut stream, mut out) = (x.clone(), vec![T::from_f32(f32::NAN); x.len()]);
        let rows = RowsMut::contiguous(&mut stream, width);
        let update = Rows::contiguous(&update, width);
        let normed = RowsMut::contiguous(&mut out, width);
        add_layer_norm(rows, update, &weight, bias, 1e-5, normed).expect("it fits");
        assert_eq!(bits(&stream), bits(&sums));
        assert_eq!(bits(&out), bits(&norm(&sums)));
    }
}

#[test]
fn layer_norm_agrees_with_float64() {
    for has_bias in [false, true] {
        layer_norm_agrees::<f32>(has_bias);
        layer_norm_agrees::<bf16>(has_bias);
    }
}

#[test]
fn layer_norm_keeps_the_digits_of_small_differences() {
    let x: Vec<f32> = (0..64).map(|d| 4096.0 + d as f32 / 256.0).collect();
    let mut out = vec![f32::NAN; 64];
    let weight = [1.0; 64];
    let rows = RowsMut::contiguous(&mut out, 64);
    layer_norm(Rows::contiguous(&x, 64), &weight, None, 1e-5, rows).expect("it fits");
    let expected = layer_norm_oracle(&wide(&x), &wide(&weight), None);
    assert_close(&out, &expected, 1e-5, 1e-3, "layer_norm far from zero");
}

#[test]
fn layer_norm_refuses_a_bias_of_another_width() {
    let (x, mut out) = ([0.0; 8], [0.0; 8]);
    let rows = RowsMut::contiguous(&mut out, 8);
    let error = layer_norm(
        Rows::contiguous(&x, 8),
        &[1.0; 8],
        Some(&[0.0; 7]),
        1e-5,
        rows,
    );
    let expected = "bias: expected the width of x, 8, got 7";
    assert_eq!(error.expect_err("wrong").to_string(), expected);
}

fn rope_agrees<T: Element>(has_norm: bool) {
    for (heads, head_dim) in [(1, 2), (3, 16), (2, 64), (5, 6)] {
        let tokens = 4;
        let width = heads * head_dim;
        let before = numbers::<T>(1, tokens * width);
        let weight = numbers::<T>(2, head_dim);
        let cos_sin = numbers::<f32>(3, 9 * head_dim);
        let positions = [3, 0, 8, 3];
        let mut x = before.clone();
        let norm = has_norm.then_some(HeadNorm {
            weight: &weight[..],
            eps: 1e-5,
            offset: 0.0,
        });
        let rows = RowsMut::contiguous(&mut x, width);
        let rotation = Rotation::new(Rows::contiguous(&cos_sin, head_dim), norm);
        rope(rows, &positions, rotation).expect("it fits");
        let mut expected = Vec::new();
        for (index, head) in wide(&before).chunks(head_dim).enumerate() {
            let angles = &wide(&cos_sin)[positions[index / heads] as usize * head_dim..];
            let head = if has_norm {
                norm_oracle(head, &wide(&weight))
            } else {
                head.to_vec()
            };
            let half = head_dim / 2;
            expected
                .extend((0..half).map(|d| head[d] * angles[d] - head[d + half] * angles[d + half]));
            expected
                .extend((0..half).map(|d| head[d + half] * angles[d] + head[d] * angles[d + half]));
        }
        assert_close(&x, &expected, rounding::<T>(), 1e-5, "rope");
    }
}

#[test]
fn rope_agrees_with_float64() {
    rope_agrees::<f32>(false);
    rope_agrees::<f32>(true);
    rope_agrees::<bf16>(false);
    rope_agrees::<bf16>(true);
}

/// Heads of which some numbers are rotated, or neighbours, after a norm of each or of all.
fn rope_variant_agrees<T: Element>(rotary_dim: usize, is_interleaved: bool, is_over_all: bool) {
    let (heads, head_dim, position) = (3, 16, 2);
    let before = numbers::<T>(1, heads * head_dim);
    let weight = numbers::<T>(
        2,
        if is_over_all {
            heads * head_dim
        } else {
            head_dim
        },
    );
    let cos_sin = numbers::<f32>(3, 4 * rotary_dim);
    let mut x = before.clone();
    let rotation = Rotation {
        cos_sin: Rows::new(&cos_sin, 4, rotary_dim, rotary_dim).expect("four rows"),
        head_dim,
        is_interleaved,
        norm: Some(HeadNorm {
            weight: &weight,
            eps: 1e-5,
            offset: 1.0,
        }),
    };
    let rows = RowsMut::contiguous(&mut x, heads * head_dim);
    rope(rows, &[position], rotation).expect("it fits");
    let weight: Vec<f64> = wide(&weight).iter().map(|weight| weight + 1.0).collect();
    let mut expected = Vec::new();
    for head in wide(&before).chunks(weight.len()) {
        expected.extend(norm_oracle(head, &weight));
    }
    let angles = &wide(&cos_sin)[position as usize * rotary_dim..][..rotary_dim];
    let half = rotary_dim / 2;
    for head in expected.chunks_mut(head_dim) {
        let normed = head.to_vec();
        for d in 0..half {
            let (a, b) = if is_interleaved {
                (2 * d, 2 * d + 1)
            } else {
                (d, d + half)
            };
            head[a] = normed[a] * angles[d] - normed[b] * angles[d + half];
            head[b] = normed[b] * angles[d] + normed[a] * angles[d + half];
        }
    }
    assert_close(&x, &expected, rounding::<T>(), 1e-5, "rope");
}

#[test]
fn rope_rotates_a_part_of_a_head_and_neighbours() {
    for rotary_dim in [0, 2, 6, 12, 16] {
        for is_interleaved in [false, true] {
            for is_over_all in [false, true] {
                rope_variant_agrees::<f32>(rotary_dim, is_interleaved, is_over_all);
                rope_variant_agrees::<bf16>(rotary_dim, is_interleaved, is_over_all);
            }
        }
    }
}

#[test]
fn rope_leaves_the_gaps_between_rows_alone() {
    let mut x = numbers::<f32>(1, 3 * 40);
    let before = x.clone();
    let cos_sin = numbers::<f32>(3, 16);
    let rows = RowsMut::new(&mut x, 3, 32, 40).expect("it fits");
    let rotation = Rotation::new(Rows::contiguous(&cos_sin, 16), None);
    rope(rows, &[0, 0, 0], rotation).expect("it fits");
    for (row, before) in x.chunks(40).zip(before.chunks(40)) {
        assert_ne!(row[..32], before[..32]);
        assert_eq!(row[32..], before[32..]);
    }
}

#[test]
fn rope_refuses_a_position_without_angles() {
    for position in [-1, 9] {
        let mut x = vec![0.0_f32; 16];
        let angles = vec![0.0; 9 * 16];
        let rows = RowsMut::contiguous(&mut x, 16);
        let rotation = Rotation::new(Rows::contiguous(&angles, 16), None);
        let error = rope(rows, &[position], rotation);
        let expected = format!("positions: expected positions in 0..9, got {position}");
        assert_eq!(error.expect_err("wrong").to_string(), expected);
    }
}

/// Softmax-weighted values of two spans, one after the other.
struct Algebra<'a> {
    scores: &'a [PerToken<f32>; 2],
    values: &'a [f32],
}

/// What is seen of the second span: the end of one block, a whole one and the start of a third.
const SEEN: Range<usize> = 13..43;

const SCALE: f32 = 0.5;

impl Kernel for Algebra<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Vec<f32> {
        if I::LANES == 16 {
            self.run_with::<I, 1, 4>()
        } else {
            self.run_with::<I, 2, 2>()
        }
    }
}

impl Algebra<'_> {
    #[inline(always)]
    fn run_with<I: Isa, const N: usize, const V: usize>(self) -> Vec<f32> {
        let (mut m, mut d, mut o) = ([0.0], [[0.0; 16]], vec![0.0; 16]);
        let mut state = SoftmaxState {
            m: &mut m,
            d: &mut d,
            o: &mut o,
        };
        state.clear();
        let span = |index: usize| -> Span<'_, f32> {
            std::array::from_fn(|block| Block {
                values: &self.values[(index * SPAN + block * 16) * 16..][..16 * 16],
                ..Block::EMPTY
            })
        };
        let mut weights = [[[0.0; 16]; 4]];
        for (index, seen) in [0..SPAN, SEEN].into_iter().enumerate() {
            let scores = &mut [self.scores[index]];
            state.update::<I, f32, f32, Numbers, N, V>(
                scores,
                SCALE * std::f32::consts::LOG2_E,
                &mut weights,
                &span(index),
                Scales::NONE,
                &[seen],
            );
        }
        state.normalize();
        o
    }
}

#[test]
fn updates_of_a_state_agree_with_float64() {
    let values = numbers::<f32>(2, 2 * SPAN * 16);
    // The second span's scores are about those of the first, a little above, or so far that it counts alone.
    for rise in [0.0, 8.0, 60.0] {
        let mut flat = numbers::<f32>(1, 2 * SPAN);
        for score in &mut flat[SPAN..] {
            *score += rise;
        }
        let scores: [PerToken<f32>; 2] = std::array::from_fn(|s| {
            std::array::from_fn(|b| std::array::from_fn(|t| flat[s * SPAN + b * 16 + t]))
        });
        let tokens = || (0..SPAN).chain(SEEN.start + SPAN..SEEN.end + SPAN);
        let weights: Vec<f64> = tokens().map(|t| f64::from(flat[t] * SCALE).exp()).collect();
        let total: f64 = weights.iter().sum();
        let expected: Vec<f64> = (0..16)
            .map(|c| {
                tokens()
                    .zip(&weights)
                    .map(|(t, w)| w * f64::from(values[t * 16 + c]))
                    .sum()
            })
            .map(|sum: f64| sum / total)
            .collect();
        let out = dispatch(Algebra {
            scores: &scores,
            values: &values,
        });
        assert_close(&out, &expected, 1e-6, 1e-6, "state");
    }
}
