//! A span: four blocks of a row, which attention handles at a time.
//!
//! ```text
//!                  block 0   block 1   block 2   block 3       spans lie at absolute positions
//!   keys           [  16  ]  [  16  ]  [  16  ]  [  16  ]      anywhere in memory
//!     R queries -> [ R x 16 scores ] ...                       several blocks side by side
//!   values         [  16  ]  [  16  ]  [  16  ]  [  16  ]
//!     R x 64 weights -> R x head_dim                           one block after the other
//! ```
//!
//! Several blocks at a time keep a core busy even with one query; a softmax over 64 tokens costs a fraction
//! of four over 16, and sums stay in registers for as long. Both halves are compiled apart: they need all
//! registers, and the exponential between them would keep some of its constants there.

use crate::{
    attention::{
        kv_layout::BLOCK_SIZE,
        span_types::{KvFormat, PerToken, SPAN, SPAN_BLOCKS, Span, factors_of},
    },
    gemm::operand::Operand,
    isa::{Isa, dispatch::Kernel, element::Packed, exp::tanh},
    memory::prefetch::{CACHE_LINE, opaque, prefetch},
};
use std::marker::PhantomData;
use std::ops::Range;

/// Asks for `len` units of a half of a head, from unit `start` on, that lies in the cache as K says.
#[inline(always)]
fn prefetch_units<P: Packed, K: KvFormat>(half: *const u8, start: usize, len: usize) {
    let place = half.wrapping_add(K::bytes::<P>(start));
    for offset in (0..K::bytes::<P>(len)).step_by(CACHE_LINE) {
        prefetch(place.wrapping_add(offset));
    }
}

/// Scores of R queries and the tokens of the first `num_blocks` of a span.
///
/// N registers hold a number for each token of a block, and B blocks are taken at a time.
pub(crate) struct TileScores<'a, F, P, K, const R: usize, const N: usize, const B: usize> {
    /// `[head_dim / DEPTH][R]`
    pub q: &'a [[F; R]],
    pub span: &'a Span<'a, P>,
    pub num_blocks: usize,
    pub scores: &'a mut [PerToken<f32>; R],
    pub kept: PhantomData<K>,
}

impl<F: Operand<P>, P: Packed, K: KvFormat, const R: usize, const N: usize, const B: usize> Kernel
    for TileScores<'_, F, P, K, R, N, B>
{
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let parts = P::DEPTH / F::DEPTH;
        let num_lines = self.q.len() / parts;
        for (taken, blocks) in self.span.as_chunks::<B>().0.iter().enumerate() {
            if taken * B >= self.num_blocks {
                break;
            }
            let mut keys: [&[[P; BLOCK_SIZE]]; B] = [&[]; B];
            for b in 0..B {
                keys[b] = &blocks[b].keys.as_chunks().0[..num_lines];
            }
            let mut sums = [[[I::splat(0.0); N]; B]; R];
            for line in 0..num_lines {
                let q = &self.q[line * parts..][..parts];
                for block in blocks {
                    prefetch_units::<P, K>(block.next_keys, line * BLOCK_SIZE, BLOCK_SIZE);
                }
                for (index, q) in q.iter().enumerate() {
                    let mut k = [[F::broadcast::<I>(&q[0]); N]; B];
                    for b in 0..B {
                        let units = &keys[b][line][..];
                        let units = if index == 0 { units } else { opaque(units) };
                        for n in 0..N {
                            k[b][n] = F::load::<I>(&units[n * I::LANES..], index);
                        }
                    }
                    for r in 0..R {
                        let q = F::broadcast::<I>(&q[r]);
                        for b in 0..B {
                            for n in 0..N {
                                sums[r][b][n] = F::multiply_add::<I>(q, k[b][n], sums[r][b][n]);
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                for b in 0..B {
                    for n in 0..N {
                        let scores = &mut self.scores[r][taken * B + b];
                        I::store(sums[r][b][n], &mut scores[n * I::LANES..]);
                    }
                }
            }
        }
    }
}

/// Scores `s` of R queries as `cap tanh(s / cap)`, where `s` is a score times its scale, and both it and `cap` have
/// the factor `log2 e`. Those of a token that a query does not see may become anything.
pub(crate) struct CapScores<'a, K, const R: usize> {
    pub scores: &'a mut [PerToken<f32>; R],
    pub num_blocks: usize,
    pub scale: f32,
    pub keys: &'a PerToken<f32>,
    pub cap: f32,
    pub kept: PhantomData<K>,
}

impl<K: KvFormat, const R: usize> Kernel for CapScores<'_, K, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let inverse = 1.0 / self.cap;
        for scores in self.scores {
            for (scores, keys) in scores.iter_mut().zip(self.keys).take(self.num_blocks) {
                for (score, scale) in scores.iter_mut().zip(&factors_of::<K>(self.scale, keys)) {
                    *score = self.cap * tanh::<I>(*score * scale * inverse);
                }
            }
        }
    }
}

/// `o += weights * values` for R queries.
///
/// A line of values has the tokens of one unit: one, or a pair. Whether a query sees all of them decides
/// how they are added, whatever the others see; nothing of a token that it does not see is used.
///
/// ```text
///   visible to query 0      . . o o|o o|o o|o o|. .        alone | together    | alone
///   to query 1              . o o o|o o|o o|o o|o .
/// ```
///
/// V registers hold coordinates of one query at a time; N where a head has no more for V.
pub(crate) struct AddValues<'a, F, P, K, const R: usize, const N: usize, const V: usize> {
    /// `[R][head_dim]`
    pub o: &'a mut [f32],
    pub weights: &'a [PerToken<F>; R],
    pub span: &'a Span<'a, P>,
    pub visible: &'a [Range<usize>; R],
    pub kept: PhantomData<K>,
}

impl<F: Operand<P>, P: Packed, K: KvFormat, const R: usize, const N: usize, const V: usize> Kernel
    for AddValues<'_, F, P, K, R, N, V>
{
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            o,
            weights,
            span,
            visible,
            ..
        } = self;
        let (mut first, mut end) = (0, SPAN / P::DEPTH);
        for visible in visible {
            first = first.max(visible.start.div_ceil(P::DEPTH));
            end = end.min(visible.end / P::DEPTH);
        }
        let end = end.max(first);
        let (start, stop) = (first * P::DEPTH, end * P::DEPTH);
        // Nearly every span is seen whole.
        let alone = if stop - start < SPAN { 0..R } else { 0..0 };
        let head_dim = o.len() / R;
        for r in alone.clone() {
            let tokens = visible[r].start..visible[r].end.min(start);
            let o = &mut o[r * head_dim..(r + 1) * head_dim];
            add_alone::<I, F, P, K, N, V>(o, &weights[r], span, tokens);
        }
        add_lines::<I, F, P, K, R, N, V>(o, weights, span, first..end);
        for r in alone {
            let tokens = visible[r].start.max(stop)..visible[r].end;
            let o = &mut o[r * head_dim..(r + 1) * head_dim];
            add_alone::<I, F, P, K, N, V>(o, &weights[r], span, tokens);
        }
    }
}

/// Adds the tokens that a query sees, line by line, and what it sees of the first and last line.
#[inline(always)]
fn add_alone<I: Isa, F: Operand<P>, P: Packed, K: KvFormat, const N: usize, const V: usize>(
    o: &mut [f32],
    weights: &PerToken<F>,
    span: &Span<'_, P>,
    tokens: Range<usize>,
) {
    let lines = tokens.start.div_ceil(P::DEPTH)..tokens.end / P::DEPTH;
    let start = tokens.end.min(lines.start * P::DEPTH);
    for token in tokens.start..start {
        add_token::<I, F, P>(o, weights, span, token);
    }
    if !lines.is_empty() {
        let weights = std::array::from_ref(weights);
        add_lines::<I, F, P, K, 1, N, V>(o, weights, span, lines.clone());
    }
    for token in start.max(lines.end * P::DEPTH)..tokens.end {
        add_token::<I, F, P>(o, weights, span, token);
    }
}

/// Adds whole lines, a strip of coordinates at a time.
#[inline(always)]
fn add_lines<
    I: Isa,
    F: Operand<P>,
    P: Packed,
    K: KvFormat,
    const R: usize,
    const N: usize,
    const V: usize,
>(
    o: &mut [f32],
    weights: &[PerToken<F>; R],
    span: &Span<'_, P>,
    lines: Range<usize>,
) {
    let head_dim = o.len() / R;
    let mut start = 0;
    while start + V * I::LANES <= head_dim {
        add_strip::<I, F, P, K, R, V>(o, start, weights, span, lines.clone());
        start += V * I::LANES;
    }
    // A head may have fewer coordinates left than V registers have lanes.
    while start < head_dim {
        add_strip::<I, F, P, K, R, N>(o, start, weights, span, lines.clone());
        start += N * I::LANES;
    }
}

/// [`add_lines`] of the coordinates from `start` on that N registers hold.
#[inline(always)]
fn add_strip<I: Isa, F: Operand<P>, P: Packed, K: KvFormat, const R: usize, const N: usize>(
    o: &mut [f32],
    start: usize,
    weights: &[PerToken<F>; R],
    span: &Span<'_, P>,
    lines: Range<usize>,
) {
    let head_dim = o.len() / R;
    let (parts, block_lines) = (P::DEPTH / F::DEPTH, BLOCK_SIZE / P::DEPTH);
    let mut sums = [[I::splat(0.0); N]; R];
    for r in 0..R {
        for n in 0..N {
            sums[r][n] = I::load(&o[r * head_dim + start + n * I::LANES..]);
        }
    }
    let mut first = lines.start;
    while first < lines.end {
        let (block, start_line) = (first / block_lines % SPAN_BLOCKS, first % block_lines);
        let count = (lines.end - first).min(block_lines - start_line);
        let memory = &span[block];
        for line in start_line..start_line + count {
            let unit = line * head_dim + start;
            prefetch_units::<P, K>(memory.next_values, unit, N * I::LANES);
            let units = &memory.values[unit..][..N * I::LANES];
            for index in 0..parts {
                let units = if index == 0 { units } else { opaque(units) };
                let place = line * parts + index;
                let mut values = [F::broadcast::<I>(&weights[0][block][place]); N];
                for n in 0..N {
                    values[n] = F::load::<I>(&units[n * I::LANES..], index);
                }
                for r in 0..R {
                    let weight = F::broadcast::<I>(&weights[r][block][place]);
                    for n in 0..N {
                        sums[r][n] = F::multiply_add::<I>(weight, values[n], sums[r][n]);
                    }
                }
            }
        }
        first += count;
    }
    for r in 0..R {
        for n in 0..N {
            I::store(sums[r][n], &mut o[r * head_dim + start + n * I::LANES..]);
        }
    }
}

/// Adds the weighted value of one token.
#[inline(always)]
fn add_token<I: Isa, F: Operand<P>, P: Packed>(
    o: &mut [f32],
    weights: &PerToken<F>,
    span: &Span<'_, P>,
    token: usize,
) {
    let (block, token) = (token / BLOCK_SIZE, token % BLOCK_SIZE);
    let weight = weights[block][token / F::DEPTH].number(token % F::DEPTH);
    let line = token / P::DEPTH * o.len();
    for start in (0..o.len()).step_by(I::LANES) {
        let value = P::load::<I>(&span[block].values[line + start..], token % P::DEPTH);
        let sum = I::load(&o[start..]);
        let sum = I::mul_add_lanes(I::splat(weight), value, sum);
        I::store(sum, &mut o[start..]);
    }
}
