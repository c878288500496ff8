//! Attention of every token to all tokens of its sequence, before and after it: the encoders'.
//!
//! Sequences lie one behind the other, without padding, and need no cache:
//!
//! ```text
//!   tokens  [ sequence 0 | sequence 1          | sequence 2 ]      starts  [0, 4, 11, 15]
//! ```
//!
//! A head of a sequence is one item of work: its keys are transposed and its values widened once, then [`QUERY_ROWS`] queries
//! at a time score all tokens, in registers. Every score, sum and output is one chain in the order of absolute positions
//! of the sequence.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::panels::Scratch,
    isa::{
        BLOCK, Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
    ops::norm::sum_lanes,
};
use std::ops::Range;

/// Queries that are computed together.
const QUERY_ROWS: usize = 4;

/// Registers of a query's scores, or of its output, that are summed together.
const REGISTERS: usize = 2;

/// Tokens and coordinates are filled up to a multiple of this: registers of the widest set.
const STEP: usize = REGISTERS * BLOCK;

/// What holds for all sequences of a layer.
#[derive(Clone, Copy)]
pub struct Bidirectional<'a> {
    /// Heads of queries. Keys and values may have fewer: each serves several neighbouring heads of queries.
    pub num_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// A token sees those at most so far before and after it; `None` sees all.
    pub reach: Option<usize>,
    /// Added to the scores, by head and distance: number `key - query + M - 1` of a row of `2 M - 1`.
    pub bias: Option<Rows<'a, f32>>,
}

/// Writes the attention of packed sequences.
///
/// Shapes: `query`, `out` `[T, num_heads * head_dim]`; `key`, `value` `[T, num_kv_heads * head_dim]`; `starts` `[S + 1]`,
/// from 0 to T.
///
/// # Errors
/// If the shapes do not fit each other, or the starts do not rise from 0 to T.
pub fn full_attention<T: Element>(
    query: Rows<'_, T>,
    key: Rows<'_, T>,
    value: Rows<'_, T>,
    starts: &[i32],
    layer: Bidirectional<'_>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let (len, width) = (query.len(), query.width());
    for (name, rows) in [("key", key), ("value", value)] {
        expect_equal(name, "as many rows as query:", len, rows.len())?;
    }
    expect_equal("out", "as many rows as query:", len, out.len())?;
    expect_equal("out", "the width of query,", width, out.width())?;
    check_starts(starts, len)?;
    if layer.num_heads == 0 || !width.is_multiple_of(layer.num_heads) {
        let expected = format_args!("a divisor of the width of query, {width}");
        return Err(ArgumentError::new("num_heads", expected, layer.num_heads));
    }
    let head_dim = width / layer.num_heads;
    let num_kv_heads = key.width().checked_div(head_dim).unwrap_or(0);
    if num_kv_heads * head_dim != key.width()
        || num_kv_heads == 0
        || !layer.num_heads.is_multiple_of(num_kv_heads)
    {
        let expected = format_args!(
            "{head_dim} for each of a divisor of {} heads",
            layer.num_heads
        );
        return Err(ArgumentError::new("key", expected, key.width()));
    }
    expect_equal("value", "the width of key,", key.width(), value.width())?;
    let lengths = starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
    let longest = lengths.clone().max().unwrap_or(0);
    if let Some(bias) = layer.bias {
        expect_equal("bias", "a row for each head:", layer.num_heads, bias.len())?;
        if bias.width() + 1 < 2 * longest || bias.width().is_multiple_of(2) {
            let expected = format_args!("an odd width of at least {}", 2 * longest - 1);
            return Err(ArgumentError::new("bias", expected, bias.width()));
        }
    }
    let stride = out.stride();
    let out = Disjoint::new(out.into_slice());
    let costs = lengths.map(|n| n * (n + STEP));
    let total: usize = layer.num_heads * costs.clone().sum::<usize>();
    let parts = pool::num_threads().min(1 + total * head_dim / (1 << 16));
    pool::run(parts, &|part| {
        let share = part * total / parts..(part + 1) * total / parts;
        let mut before = 0;
        for (sequence, cost) in costs.clone().enumerate() {
            for head in 0..layer.num_heads {
                if share.contains(&before) {
                    let tokens = starts[sequence] as usize..starts[sequence + 1] as usize;
                    dispatch(Head {
                        query,
                        key,
                        value,
                        layer,
                        tokens,
                        head,
                        kv_head: head / (layer.num_heads / num_kv_heads),
                        head_dim,
                        out,
                        stride,
                    });
                }
                before += cost;
            }
        }
    });
    Ok(())
}

fn check_starts(starts: &[i32], len: usize) -> Result<(), ArgumentError> {
    let rises = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    let ends = starts.first() == Some(&0) && starts.last().map(|&end| end as usize) == Some(len);
    if rises && ends {
        return Ok(());
    }
    let expected = format_args!("numbers that rise from 0 to the number of tokens, {len}");
    Err(ArgumentError::new("starts", expected, "others"))
}

/// A head of a sequence.
struct Head<'a, T> {
    query: Rows<'a, T>,
    key: Rows<'a, T>,
    value: Rows<'a, T>,
    layer: Bidirectional<'a>,
    tokens: Range<usize>,
    head: usize,
    kv_head: usize,
    head_dim: usize,
    out: Disjoint<'a, T>,
    stride: usize,
}

/// Memory of a head: keys `[head_dim][n]`, values `[n][coordinates]`, queries `[QUERY_ROWS][head_dim]`, scores `[QUERY_ROWS][n]`.
struct Memory<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    queries: &'a mut [f32],
    scores: &'a mut [f32],
    /// Tokens, filled up.
    n: usize,
    /// Coordinates, filled up.
    width: usize,
}

impl<T: Element> Kernel for Head<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let n = self.tokens.len().next_multiple_of(STEP);
        let width = self.head_dim.next_multiple_of(STEP);
        let sizes = [
            self.head_dim * n,
            n * width,
            QUERY_ROWS * self.head_dim,
            QUERY_ROWS * n,
        ];
        let mut scratch = f32::take_scratch(sizes.iter().sum());
        let (keys, rest) = scratch.split_at_mut(sizes[0]);
        let (values, rest) = rest.split_at_mut(sizes[1]);
        let (queries, rest) = rest.split_at_mut(sizes[2]);
        let mut memory = Memory {
            keys,
            values,
            queries,
            scores: &mut rest[..sizes[3]],
            n,
            width,
        };
        self.fill(&mut memory);
        for first in (0..self.tokens.len()).step_by(QUERY_ROWS) {
            self.attend::<I>(first, &mut memory);
        }
        f32::return_scratch(scratch);
    }
}

impl<T: Element> Head<'_, T> {
    fn part<'r>(&self, rows: &Rows<'r, T>, token: usize, head: usize) -> &'r [T] {
        &rows.row(self.tokens.start + token)[head * self.head_dim..][..self.head_dim]
    }

    /// Transposes the keys and widens the values; what fills up is zero, and so is its product.
    #[inline(always)]
    fn fill(&self, memory: &mut Memory<'_>) {
        let (n, width) = (memory.n, memory.width);
        for first in (0..n).step_by(BLOCK) {
            for coordinate in 0..self.head_dim {
                let line = &mut memory.keys[coordinate * n + first..][..BLOCK];
                for (token, number) in (first..).zip(line) {
                    *number = if token < self.tokens.len() {
                        self.part(&self.key, token, self.kv_head)[coordinate].to_f32()
                    } else {
                        0.0
                    };
                }
            }
        }
        for (token, line) in memory.values.chunks_exact_mut(width).enumerate() {
            let values = if token < self.tokens.len() {
                self.part(&self.value, token, self.kv_head)
            } else {
                &[]
            };
            for (number, value) in line.iter_mut().zip(values) {
                *number = value.to_f32();
            }
            line[values.len()..].fill(0.0);
        }
    }

    /// Computes the queries from `first` on.
    #[inline(always)]
    fn attend<I: Isa>(&self, first: usize, memory: &mut Memory<'_>) {
        let len = self.tokens.len();
        let rows = QUERY_ROWS.min(len - first);
        let scale = self.layer.scale * std::f32::consts::LOG2_E;
        memory.queries[rows * self.head_dim..].fill(0.0);
        for row in 0..rows {
            let line = &mut memory.queries[row * self.head_dim..][..self.head_dim];
            for (number, query) in
                line.iter_mut()
                    .zip(self.part(&self.query, first + row, self.head))
            {
                *number = query.to_f32() * scale;
            }
        }
        let seen = match self.layer.reach {
            None => 0..len,
            Some(reach) => first.saturating_sub(reach)..(first + rows + reach).min(len),
        };
        // By absolute positions: the order of no sum depends on which queries travel together.
        let whole = seen.start / STEP * STEP..seen.end.next_multiple_of(STEP);
        scores::<I>(memory, self.head_dim, whole.clone());
        let mut sums = [0.0; QUERY_ROWS];
        for (row, sum) in sums.iter_mut().enumerate().take(rows) {
            *sum = self.softmax_weights::<I>(
                first + row,
                &mut memory.scores[row * memory.n..][..memory.n],
                &whole,
            );
        }
        for start in (0..memory.width).step_by(REGISTERS * I::LANES) {
            let totals = outputs::<I>(memory, start, whole.start..seen.end);
            for row in 0..rows {
                let mut numbers = [0.0; STEP];
                for (register, total) in totals[row].into_iter().enumerate() {
                    I::store(total, &mut numbers[register * I::LANES..]);
                }
                let end = self.head_dim.min(start + REGISTERS * I::LANES);
                let place =
                    (self.tokens.start + first + row) * self.stride + self.head * self.head_dim;
                if start < end {
                    // SAFETY: this row of this head belongs to one item.
                    let out = unsafe { self.out.take(place + start..place + end) };
                    for (out, number) in out.iter_mut().zip(numbers) {
                        *out = T::from_f32(number / sums[row]);
                    }
                }
            }
        }
    }

    /// Turns the scores of a query into weights, and returns their sum.
    #[inline(always)]
    fn softmax_weights<I: Isa>(
        &self,
        query: usize,
        scores: &mut [f32],
        whole: &Range<usize>,
    ) -> f32 {
        let len = self.tokens.len();
        if let Some(bias) = self.layer.bias {
            let middle = bias.width() / 2;
            let bias = &bias.row(self.head)[middle - query..];
            for (score, bias) in scores[..len].iter_mut().zip(bias) {
                *score = I::mul_add(*bias, std::f32::consts::LOG2_E, *score);
            }
        }
        let seen = match self.layer.reach {
            None => 0..len,
            Some(reach) => query.saturating_sub(reach)..(query + reach + 1).min(len),
        };
        scores[whole.start..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..whole.end].fill(f32::NEG_INFINITY);
        let scores = &mut scores[whole.clone()];
        let mut largest = [f32::NEG_INFINITY; BLOCK];
        for block in scores.as_chunks::<BLOCK>().0 {
            for lane in 0..BLOCK {
                largest[lane] = if block[lane] > largest[lane] {
                    block[lane]
                } else {
                    largest[lane]
                };
            }
        }
        let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0.0; BLOCK];
        for block in scores.as_chunks_mut::<BLOCK>().0 {
            for score in block.iter_mut() {
                *score -= largest;
            }
            I::exp2_block(block);
            for lane in 0..BLOCK {
                sums[lane] += block[lane];
            }
        }
        sum_lanes(sums)
    }
}

/// Writes the products of the queries and the keys of these tokens.
#[inline(always)]
fn scores<I: Isa>(memory: &mut Memory<'_>, head_dim: usize, tokens: Range<usize>) {
    let n = memory.n;
    for start in tokens.step_by(REGISTERS * I::LANES) {
        let mut sums = [[I::splat(0.0); REGISTERS]; QUERY_ROWS];
        for coordinate in 0..head_dim {
            let line = &memory.keys[coordinate * n + start..][..REGISTERS * I::LANES];
            let keys: [I::Vector; REGISTERS] =
                std::array::from_fn(|r| I::load(&line[r * I::LANES..]));
            for row in 0..QUERY_ROWS {
                let query = I::splat(memory.queries[row * head_dim + coordinate]);
                for register in 0..REGISTERS {
                    sums[row][register] =
                        I::mul_add_lanes(query, keys[register], sums[row][register]);
                }
            }
        }
        for row in 0..QUERY_ROWS {
            for register in 0..REGISTERS {
                let place = row * n + start + register * I::LANES;
                I::store(sums[row][register], &mut memory.scores[place..]);
            }
        }
    }
}

/// The weighted values of these tokens: coordinates from `start` on, of each query.
#[inline(always)]
fn outputs<I: Isa>(
    memory: &Memory<'_>,
    start: usize,
    tokens: Range<usize>,
) -> [[I::Vector; REGISTERS]; QUERY_ROWS] {
    let (n, width) = (memory.n, memory.width);
    let mut sums = [[I::splat(0.0); REGISTERS]; QUERY_ROWS];
    for token in tokens {
        let line = &memory.values[token * width + start..][..REGISTERS * I::LANES];
        let values: [I::Vector; REGISTERS] =
            std::array::from_fn(|r| I::load(&line[r * I::LANES..]));
        for row in 0..QUERY_ROWS {
            let weight = I::splat(memory.scores[row * n + token]);
            for register in 0..REGISTERS {
                sums[row][register] =
                    I::mul_add_lanes(weight, values[register], sums[row][register]);
            }
        }
    }
    sums
}
