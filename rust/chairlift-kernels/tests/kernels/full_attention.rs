//! Attention of packed sequences against float64.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut,
    attention::full::{Bidirectional, full_attention},
    bf16,
};

const LENGTHS: [usize; 8] = [1, 2, 31, 32, 33, 0, 70, 5];
const LONGEST: usize = 80;

struct Case {
    heads: usize,
    head_dim: usize,
    reach: Option<usize>,
    has_bias: bool,
}

fn starts(lengths: &[usize]) -> Vec<i32> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += *length as i32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn attention<T: Element>(case: &Case, fused: &[T], lengths: &[usize], bias: &[f32]) -> Vec<T> {
    let width = case.heads * case.head_dim;
    let tokens = lengths.iter().sum();
    let part = |index: usize| {
        let data = &fused[(index * width).min(fused.len())..];
        Rows::new(data, tokens, width, 3 * width).expect("it fits")
    };
    let mut out = vec![T::from_f32(f32::NAN); tokens * width];
    let layer = Bidirectional {
        num_heads: case.heads,
        scale: 0.3,
        reach: case.reach,
        bias: case
            .has_bias
            .then(|| Rows::contiguous(bias, 2 * LONGEST - 1)),
    };
    let rows = RowsMut::contiguous(&mut out, width);
    full_attention(part(0), part(1), part(2), &starts(lengths), layer, rows).expect("it fits");
    out
}

fn expected(case: &Case, fused: &[f64], lengths: &[usize], bias: &[f32]) -> Vec<f64> {
    let (dim, width) = (case.head_dim, case.heads * case.head_dim);
    let mut out = vec![0.0; fused.len() / 3];
    let mut start = 0;
    for &length in lengths {
        for head in 0..case.heads {
            let part = |index: usize, token: usize| {
                &fused[((start + token) * 3 + index) * width + head * dim..][..dim]
            };
            for query in 0..length {
                let score = |key: usize| {
                    let dot: f64 = part(0, query)
                        .iter()
                        .zip(part(1, key))
                        .map(|(q, k)| q * k)
                        .sum();
                    let distance = LONGEST - 1 + key - query;
                    let bias = if case.has_bias {
                        f64::from(bias[head * (2 * LONGEST - 1) + distance])
                    } else {
                        0.0
                    };
                    let is_seen = case.reach.is_none_or(|reach| key.abs_diff(query) <= reach);
                    if is_seen {
                        (dot * 0.3 + bias).exp()
                    } else {
                        0.0
                    }
                };
                let weights: Vec<f64> = (0..length).map(score).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let sum: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(key, w)| w * part(2, key)[d])
                        .sum();
                    out[(start + query) * width + head * dim + d] = sum / total;
                }
            }
        }
        start += length;
    }
    out
}

fn agrees<T: Element>(case: &Case) {
    let width = case.heads * case.head_dim;
    let tokens: usize = LENGTHS.iter().sum();
    let fused = numbers::<T>(1, tokens * 3 * width);
    let bias = numbers::<f32>(2, case.heads * (2 * LONGEST - 1));
    let out = attention(case, &fused, &LENGTHS, &bias);
    let oracle = expected(case, &wide(&fused), &LENGTHS, &bias);
    assert_close(
        &out,
        &oracle,
        rounding::<T>() + 1e-5,
        1e-5,
        "full attention",
    );
    // Alone, each sequence has the same bits.
    let mut start = 0;
    for length in LENGTHS {
        let sequence = &fused[start * 3 * width..][..length * 3 * width];
        let alone = attention(case, sequence, &[length], &bias);
        assert_eq!(bits(&alone), bits(&out[start * width..][..length * width]));
        start += length;
    }
}

#[test]
fn packed_sequences_agree_with_float64() {
    for (heads, head_dim) in [(3, 32), (2, 64), (1, 16), (2, 24), (1, 8)] {
        for (reach, has_bias) in [
            (None, false),
            (Some(7), false),
            (Some(0), true),
            (None, true),
        ] {
            let case = Case {
                heads,
                head_dim,
                reach,
                has_bias,
            };
            agrees::<f32>(&case);
            agrees::<bf16>(&case);
        }
    }
}

#[test]
fn wrong_starts_are_refused() {
    let x = [0.0_f32; 4 * 16];
    let rows = Rows::contiguous(&x, 16);
    let layer = Bidirectional {
        num_heads: 1,
        scale: 1.0,
        reach: None,
        bias: None,
    };
    for starts in [
        &[][..],
        &[0],
        &[0, 3],
        &[0, 5],
        &[1, 4],
        &[0, 3, 2, 4],
        &[0, -1, 4],
    ] {
        let mut out = x;
        let out = RowsMut::contiguous(&mut out, 16);
        let error = full_attention(rows, rows, rows, starts, layer, out).expect_err("wrong");
        assert!(
            error.to_string().starts_with("starts: expected"),
            "{starts:?}"
        );
    }
}

#[test]
fn a_bias_for_shorter_sequences_is_refused() {
    let x = [0.0_f32; 4 * 16];
    let (rows, bias) = (Rows::contiguous(&x, 16), [0.0; 5]);
    let layer = Bidirectional {
        num_heads: 1,
        scale: 1.0,
        reach: None,
        bias: Some(Rows::contiguous(&bias, 5)),
    };
    let mut out = x;
    let out = RowsMut::contiguous(&mut out, 16);
    let error = full_attention(rows, rows, rows, &[0, 4], layer, out).expect_err("wrong");
    assert_eq!(
        error.to_string(),
        "bias: expected an odd width of at least 7, got 5"
    );
}
