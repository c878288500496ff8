//! Recurrent layers against float64, whatever the chunks and the batch.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut, bf16,
    ops::{gated_norm::gated_rms_norm, scale::gate_by_sigmoid},
    recurrent::{
        RecurrentRows,
        conv::{Conv, causal_conv},
        delta::{Delta, Heads, gated_delta},
        scan::{Scan, ScanSizes, selective_scan},
    },
};

const TOKENS: usize = 37;
const STATES: usize = 5;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn a_gate_is_a_sigmoid() {
    let (mut x, gate) = (numbers::<f32>(1, 40), numbers::<f32>(2, 40));
    let expected: Vec<f64> = wide(&x)
        .iter()
        .zip(wide(&gate))
        .map(|(x, gate)| x / (1.0 + (-gate).exp()))
        .collect();
    let gates = Rows::contiguous(&gate, 20);
    gate_by_sigmoid(RowsMut::contiguous(&mut x, 20), gates).expect("it fits");
    assert_close(&x, &expected, rounding::<f32>(), 1e-6, "gated");
}

/// Runs a sequence in chunks of row 3, while row 1 has one token of its own in each step.
fn in_chunks<T: Element>(
    chunk: usize,
    width: usize,
    state: &mut [f32],
    mut step: impl FnMut(&[usize], RecurrentRows<'_>, &mut [f32], RowsMut<'_, T>),
) -> Vec<T> {
    let mut out = vec![T::default(); TOKENS * width];
    for (index, start) in (0..TOKENS).step_by(chunk).enumerate() {
        let end = (start + chunk).min(TOKENS);
        // Row 1 computes the tokens of the sequence one by one: as many as there are steps.
        let tokens: Vec<usize> = [index].into_iter().chain(start..end).collect();
        let mut part = vec![T::default(); tokens.len() * width];
        let sequences = RecurrentRows {
            rows: &[1, 3],
            starts: &[0, 1, tokens.len() as i32],
            lens: &[index as i32 + 1, end as i32],
        };
        step(
            &tokens,
            sequences,
            state,
            RowsMut::contiguous(&mut part, width),
        );
        out[start * width..end * width].copy_from_slice(&part[width..]);
    }
    out
}

fn gathered<T: Element>(numbers: &[T], width: usize, tokens: &[usize]) -> Vec<T> {
    let rows = tokens.iter();
    rows.flat_map(|token| numbers[token * width..(token + 1) * width].to_vec())
        .collect()
}

fn convolution<T: Element>() {
    let (channels, taps) = (70, 4);
    let (x, gate) = (
        numbers::<T>(1, TOKENS * channels),
        numbers::<T>(2, TOKENS * channels),
    );
    let (weight, bias) = (
        numbers::<f32>(3, taps * channels),
        numbers::<f32>(4, channels),
    );
    let (wide_x, wide_gate) = (wide(&x), wide(&gate));
    let input = |token: usize, c: usize| {
        let place = token * channels + c;
        wide_x[place] * wide_gate[place]
    };
    let mut expected = vec![];
    for token in 0..TOKENS {
        for c in 0..channels {
            let sum: f64 = (0..taps)
                .filter(|tap| token + tap + 1 >= taps)
                .map(|tap| f64::from(weight[tap * channels + c]) * input(token + tap + 1 - taps, c))
                .sum();
            expected.push(silu(sum + f64::from(bias[c])) * wide_gate[token * channels + c]);
        }
    }
    let run = |chunk: usize| {
        let mut state = vec![f32::NAN; STATES * (taps - 1) * channels];
        in_chunks::<T>(
            chunk,
            channels,
            &mut state,
            |tokens, sequences, state, out| {
                let (x, gate) = (
                    gathered(&x, channels, tokens),
                    gathered(&gate, channels, tokens),
                );
                let gate = Rows::contiguous(&gate, channels);
                let conv = Conv {
                    x: Rows::contiguous(&x, channels),
                    gates: Some((gate, gate)),
                    weight: Rows::contiguous(&weight, channels),
                    bias: Some(&bias),
                    has_silu: true,
                };
                causal_conv(conv, sequences, state, out).expect("it fits");
            },
        )
    };
    let whole = run(TOKENS);
    assert_close(&whole, &expected, rounding::<T>(), 2e-5, "convolution");
    for chunk in [1, 2, 3, 16, 30] {
        assert_eq!(bits(&run(chunk)), bits(&whole), "chunks of {chunk}");
    }
}

#[test]
fn a_convolution_is_that_of_the_row_whatever_the_chunks() {
    convolution::<f32>();
    convolution::<bf16>();
}

struct Rule<T> {
    heads: Heads,
    qkv: Vec<T>,
    gate: Vec<T>,
    beta_alpha: Vec<T>,
    rate: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

const EPS: f32 = 1e-5;
const MAX_BETA: f32 = 1.5;

impl<T: Element> Rule<T> {
    fn new(value_dim: usize, interleaved_heads: bool) -> Self {
        let heads = Heads {
            num_key_heads: 2,
            num_value_heads: 4,
            key_dim: 11,
            value_dim,
            interleaved_heads,
        };
        Self {
            heads,
            qkv: numbers(1, TOKENS * (2 * 2 * 11 + 4 * value_dim)),
            gate: numbers(2, TOKENS * 4 * value_dim),
            beta_alpha: numbers(3, TOKENS * 8),
            rate: numbers(4, 4)
                .into_iter()
                .map(|x: f32| 0.1 * x.exp())
                .collect(),
            dt_bias: numbers(5, 4),
            norm: numbers(6, value_dim),
        }
    }

    fn exact(&self) -> Vec<f64> {
        let Heads {
            key_dim, value_dim, ..
        } = self.heads;
        let (qkv, gate, beta_alpha) = (wide(&self.qkv), wide(&self.gate), wide(&self.beta_alpha));
        let width = qkv.len() / TOKENS;
        let mut out = vec![0.0; gate.len()];
        for head in 0..4 {
            let key_head = if self.heads.interleaved_heads {
                head % 2
            } else {
                head / 2
            };
            let mut state = vec![vec![0.0; value_dim]; key_dim];
            for token in 0..TOKENS {
                let row = &qkv[token * width..(token + 1) * width];
                let unit = |x: &[f64]| {
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect::<Vec<_>>()
                };
                let query = unit(&row[key_head * key_dim..][..key_dim]);
                let key = unit(&row[(2 + key_head) * key_dim..][..key_dim]);
                let value = &row[4 * key_dim + head * value_dim..][..value_dim];
                let [b, a] = [
                    beta_alpha[token * 8 + head],
                    beta_alpha[token * 8 + 4 + head],
                ];
                let step = (a + f64::from(self.dt_bias[head])).exp().ln_1p();
                let decay = (-f64::from(self.rate[head]) * step).exp();
                let mut outputs = vec![0.0; value_dim];
                for (v, output) in outputs.iter_mut().enumerate() {
                    let kv_mem: f64 = (0..key_dim).map(|k| decay * state[k][v] * key[k]).sum();
                    let share = f64::from(MAX_BETA) / (1.0 + (-b).exp());
                    let correction = (value[v] - kv_mem) * share;
                    for k in 0..key_dim {
                        state[k][v] = decay * state[k][v] + key[k] * correction;
                        *output += state[k][v] * query[k] / (key_dim as f64).sqrt();
                    }
                }
                let mean = outputs.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                for (v, output) in outputs.iter().enumerate() {
                    let place = token * 4 * value_dim + head * value_dim + v;
                    let normed = output / (mean + f64::from(EPS)).sqrt() * f64::from(self.norm[v]);
                    out[place] = normed * silu(gate[place]);
                }
            }
        }
        out
    }

    fn run(&self, chunk: usize) -> Vec<T> {
        let Heads {
            key_dim, value_dim, ..
        } = self.heads;
        let width = self.qkv.len() / TOKENS;
        let mut state = vec![f32::NAN; STATES * 4 * key_dim * value_dim];
        in_chunks(
            chunk,
            4 * value_dim,
            &mut state,
            |tokens, sequences, state, out| {
                let qkv = gathered(&self.qkv, width, tokens);
                let gate = gathered(&self.gate, 4 * value_dim, tokens);
                let beta_alpha = gathered(&self.beta_alpha, 8, tokens);
                let delta = Delta {
                    heads: self.heads,
                    qkv: Rows::contiguous(&qkv, width),
                    gate: Rows::contiguous(&gate, 4 * value_dim),
                    beta_alpha: Rows::contiguous(&beta_alpha, 8),
                    rate: &self.rate,
                    dt_bias: &self.dt_bias,
                    norm_weight: &self.norm,
                    eps: EPS,
                    max_beta: MAX_BETA,
                };
                gated_delta(delta, sequences, state, out).expect("it fits");
            },
        )
    }
}

fn delta_rule<T: Element>(value_dim: usize, interleaved_heads: bool) {
    let rule = Rule::<T>::new(value_dim, interleaved_heads);
    let whole = rule.run(TOKENS);
    assert_close(&whole, &rule.exact(), rounding::<T>(), 5e-5, "delta rule");
    for chunk in [1, 2, 16, 17, 30] {
        assert_eq!(bits(&rule.run(chunk)), bits(&whole), "chunks of {chunk}");
    }
}

#[test]
fn the_delta_rule_is_that_of_the_row_whatever_the_chunks() {
    for value_dim in [16, 48, 64, 80] {
        delta_rule::<f32>(value_dim, value_dim == 48);
        delta_rule::<bf16>(value_dim, value_dim == 80);
    }
}

struct Scanned<T> {
    sizes: ScanSizes,
    xbc: Vec<T>,
    dt: Vec<T>,
    rate: Vec<f32>,
    dt_bias: Vec<f32>,
    skip: Vec<f32>,
}

impl<T: Element> Scanned<T> {
    fn new(head_dim: usize) -> Self {
        let sizes = ScanSizes {
            num_heads: 4,
            head_dim,
            num_groups: 2,
            state_dim: 11,
        };
        Self {
            sizes,
            xbc: numbers(1, TOKENS * (4 * head_dim + 2 * 2 * 11)),
            dt: numbers(2, TOKENS * 4),
            rate: numbers(3, 4)
                .into_iter()
                .map(|x: f32| 0.1 * x.exp())
                .collect(),
            dt_bias: numbers(4, 4),
            skip: numbers(5, 4),
        }
    }

    fn exact(&self) -> Vec<f64> {
        let (head_dim, state_dim) = (self.sizes.head_dim, self.sizes.state_dim);
        let (xbc, dt) = (wide(&self.xbc), wide(&self.dt));
        let width = xbc.len() / TOKENS;
        let mut out = vec![0.0; TOKENS * 4 * head_dim];
        for head in 0..4 {
            let mut state = vec![vec![0.0; head_dim]; state_dim];
            for token in 0..TOKENS {
                let row = &xbc[token * width..(token + 1) * width];
                let (x, rest) = row.split_at(4 * head_dim);
                let (b, c) = rest.split_at(2 * state_dim);
                let group = head / 2 * state_dim;
                let step = (dt[token * 4 + head] + f64::from(self.dt_bias[head]))
                    .exp()
                    .ln_1p();
                let decay = (-f64::from(self.rate[head]) * step).exp();
                for p in 0..head_dim {
                    let input = x[head * head_dim + p];
                    let mut output = f64::from(self.skip[head]) * input;
                    for n in 0..state_dim {
                        state[n][p] = decay * state[n][p] + step * b[group + n] * input;
                        output += state[n][p] * c[group + n];
                    }
                    out[token * 4 * head_dim + head * head_dim + p] = output;
                }
            }
        }
        out
    }

    fn run(&self, chunk: usize) -> Vec<T> {
        let inner = 4 * self.sizes.head_dim;
        let width = self.xbc.len() / TOKENS;
        let mut state = vec![f32::NAN; STATES * inner * self.sizes.state_dim];
        in_chunks(chunk, inner, &mut state, |tokens, sequences, state, out| {
            let xbc = gathered(&self.xbc, width, tokens);
            let dt = gathered(&self.dt, 4, tokens);
            let scan = Scan {
                sizes: self.sizes,
                xbc: Rows::contiguous(&xbc, width),
                dt: Rows::contiguous(&dt, 4),
                rate: &self.rate,
                dt_bias: &self.dt_bias,
                skip: &self.skip,
            };
            selective_scan(scan, sequences, state, out).expect("it fits");
        })
    }
}

fn scan<T: Element>(head_dim: usize) {
    let scanned = Scanned::<T>::new(head_dim);
    let whole = scanned.run(TOKENS);
    assert_close(&whole, &scanned.exact(), rounding::<T>(), 5e-5, "scan");
    for chunk in [1, 2, 16, 17, 30] {
        assert_eq!(bits(&scanned.run(chunk)), bits(&whole), "chunks of {chunk}");
    }
}

#[test]
fn a_scan_is_that_of_the_row_whatever_the_chunks() {
    for head_dim in [16, 48, 64] {
        scan::<f32>(head_dim);
        scan::<bf16>(head_dim);
    }
}

#[test]
fn a_gated_norm_is_of_each_group() {
    let (mut x, gate) = (numbers::<f32>(1, 3 * 40), numbers::<f32>(2, 3 * 40));
    let mut plain = x.clone();
    let weight = numbers::<f32>(3, 40);
    let (wide_x, wide_gate) = (wide(&x), wide(&gate));
    let gated: Vec<f64> = wide_x
        .iter()
        .zip(&wide_gate)
        .map(|(x, gate)| x * silu(*gate))
        .collect();
    let mut expected = vec![];
    for (place, y) in gated.iter().enumerate() {
        let group = &gated[place / 20 * 20..][..20];
        let mean = group.iter().map(|y| y * y).sum::<f64>() / 20.0;
        expected.push(y / (mean + f64::from(EPS)).sqrt() * f64::from(weight[place % 40]));
    }
    let gates = Rows::contiguous(&gate, 40);
    for (x, weight, expected) in [
        (&mut x, Some(&weight[..]), &expected),
        (&mut plain, None, &gated),
    ] {
        gated_rms_norm(RowsMut::contiguous(x, 40), gates, weight, 20, EPS).expect("it fits");
        assert_close(x, expected, rounding::<f32>(), 1e-5, "gated norm");
    }
}
