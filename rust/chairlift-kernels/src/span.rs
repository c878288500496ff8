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
//! of four over 16, and sums stay in registers for as long.

use crate::element::Packed;
use crate::factor::Factor;
use crate::isa::{CACHE_LINE, Isa, again, prefetch};
use crate::layout::BLOCK_SIZE;
use crate::stored::Kept;
use std::ops::Range;

/// Blocks of a span.
pub const SPAN_BLOCKS: usize = 4;

/// Tokens of a span.
pub const SPAN: usize = SPAN_BLOCKS * BLOCK_SIZE;

/// A number for each token of a span.
pub type PerToken<T> = [[T; BLOCK_SIZE]; SPAN_BLOCKS];

/// One head of one block.
#[derive(Clone, Copy)]
pub struct Block<'a, P> {
    /// `[head_dim][16]`
    pub keys: &'a [P],
    /// `[16][head_dim]`
    pub values: &'a [P],
    /// Bytes from here to what is asked for meanwhile; of widened codes, where the next head lies.
    pub ahead: isize,
}

/// The blocks of a span; where a row has fewer, others that no query sees stand in for them.
pub type Span<'a, P> = [Block<'a, P>; SPAN_BLOCKS];

impl<P: Packed> Block<'_, P> {
    /// Asks for what lies `ahead` of the cache lines of some units.
    #[inline(always)]
    fn ask<K: Kept>(&self, units: &[P]) {
        if self.ahead == 0 {
            return;
        }
        let mut place = units.as_ptr().cast::<u8>().wrapping_offset(self.ahead);
        if K::IS_INT8 {
            // A code is a byte; values follow the keys here as there.
            let units = units.as_ptr() as usize - self.keys.as_ptr() as usize;
            let codes = units / size_of::<P>() * P::DEPTH;
            place = std::ptr::without_provenance(self.ahead.cast_unsigned() + codes);
        }
        for offset in (0..size_of_val(units)).step_by(CACHE_LINE) {
            prefetch(place.wrapping_add(offset), true);
        }
    }
}

/// Scores of R queries `[head_dim / DEPTH][R]` and the tokens of the first `num_blocks` of a span.
///
/// N registers hold a number for each token of a block, and B blocks are taken at a time.
#[inline(always)]
pub(crate) fn scores<
    I: Isa,
    F: Factor<P>,
    P: Packed,
    K: Kept,
    const R: usize,
    const N: usize,
    const B: usize,
>(
    q: &[[F; R]],
    span: &Span<'_, P>,
    num_blocks: usize,
    scores: &mut [PerToken<f32>; R],
) {
    let parts = P::DEPTH / F::DEPTH;
    for (taken, &blocks) in span.as_chunks::<B>().0.iter().enumerate() {
        if taken * B >= num_blocks {
            break;
        }
        let mut sums = [[[I::splat(0.0); N]; B]; R];
        for (line, q) in q.chunks_exact(parts).enumerate() {
            for (index, q) in q.iter().enumerate() {
                let mut k = [[F::broadcast::<I>(&q[0]); N]; B];
                for b in 0..B {
                    let units = &blocks[b].keys[line * BLOCK_SIZE..][..BLOCK_SIZE];
                    let units = if index == 0 { units } else { again(units) };
                    if index == 0 {
                        blocks[b].ask::<K>(units);
                    }
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
                    let scores = &mut scores[r][taken * B + b];
                    I::store(sums[r][b][n], &mut scores[n * I::LANES..]);
                }
            }
        }
    }
}

/// `o += weights * values` for R queries `[R][head_dim]`.
///
/// V registers hold coordinates of one query at a time. Whether a query sees all of a block decides how
/// that block is added, whatever the others see; nothing of a token that it does not see is used.
#[inline(always)]
pub(crate) fn add_values<
    I: Isa,
    F: Factor<P>,
    P: Packed,
    K: Kept,
    const R: usize,
    const N: usize,
    const V: usize,
>(
    o: &mut [f32],
    weights: &[PerToken<F>; R],
    span: &Span<'_, P>,
    visible: &[Range<usize>; R],
) {
    let head_dim = o.len() / R;
    let mut block = 0;
    while block < SPAN_BLOCKS {
        let whole = block..first_partial(visible, block);
        if !whole.is_empty() {
            add_blocks::<I, F, P, K, R, N, V>(o, weights, span, whole.clone());
            block = whole.end;
            continue;
        }
        for ((o, weights), visible) in o.chunks_exact_mut(head_dim).zip(weights).zip(visible) {
            let seen = part(visible, block);
            if seen.len() == BLOCK_SIZE {
                let weights = std::array::from_ref(weights);
                add_blocks::<I, F, P, K, 1, N, V>(o, weights, span, block..block + 1);
            } else {
                add_some::<I, F, P>(o, &weights[block], span[block].values, seen);
            }
        }
        block += 1;
    }
}

/// The tokens of a block that are visible, counted from its start.
#[inline(always)]
fn part(visible: &Range<usize>, block: usize) -> Range<usize> {
    let start = block * BLOCK_SIZE;
    let first = visible.start.clamp(start, start + BLOCK_SIZE) - start;
    let end = visible.end.clamp(start, start + BLOCK_SIZE) - start;
    first..end.max(first)
}

/// The first block from `block` on of which some query does not see all.
#[inline(always)]
fn first_partial<const R: usize>(visible: &[Range<usize>; R], block: usize) -> usize {
    let (mut first, mut end) = (0, SPAN);
    for visible in visible {
        first = first.max(visible.start);
        end = end.min(visible.end);
    }
    if first <= block * BLOCK_SIZE {
        block.max(end / BLOCK_SIZE)
    } else {
        block
    }
}

/// Adds whole blocks, a strip of coordinates at a time.
#[inline(always)]
fn add_blocks<
    I: Isa,
    F: Factor<P>,
    P: Packed,
    K: Kept,
    const R: usize,
    const N: usize,
    const V: usize,
>(
    o: &mut [f32],
    weights: &[PerToken<F>; R],
    span: &Span<'_, P>,
    blocks: Range<usize>,
) {
    let head_dim = o.len() / R;
    let mut start = 0;
    while start + V * I::LANES <= head_dim {
        add_strip::<I, F, P, K, R, V>(o, start, weights, span, blocks.clone());
        start += V * I::LANES;
    }
    // A head may have fewer coordinates left than V registers have lanes.
    while start < head_dim {
        add_strip::<I, F, P, K, R, N>(o, start, weights, span, blocks.clone());
        start += N * I::LANES;
    }
}

/// [`add_blocks`] of the coordinates from `start` on that N registers hold.
#[inline(always)]
fn add_strip<I: Isa, F: Factor<P>, P: Packed, K: Kept, const R: usize, const N: usize>(
    o: &mut [f32],
    start: usize,
    weights: &[PerToken<F>; R],
    span: &Span<'_, P>,
    blocks: Range<usize>,
) {
    let head_dim = o.len() / R;
    let parts = P::DEPTH / F::DEPTH;
    let mut sums = [[I::splat(0.0); N]; R];
    for r in 0..R {
        for n in 0..N {
            sums[r][n] = I::load(&o[r * head_dim + start + n * I::LANES..]);
        }
    }
    for block in blocks {
        let (block, memory) = (block % SPAN_BLOCKS, span[block]);
        for line in 0..BLOCK_SIZE / P::DEPTH {
            let units = &memory.values[line * head_dim + start..][..N * I::LANES];
            memory.ask::<K>(units);
            for index in 0..parts {
                let units = if index == 0 { units } else { again(units) };
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
    }
    for r in 0..R {
        for n in 0..N {
            I::store(sums[r][n], &mut o[r * head_dim + start + n * I::LANES..]);
        }
    }
}

/// Adds the weighted values of some tokens of a block to one query's `o`.
#[inline(always)]
fn add_some<I: Isa, F: Factor<P>, P: Packed>(
    o: &mut [f32],
    weights: &[F; BLOCK_SIZE],
    values: &[P],
    tokens: Range<usize>,
) {
    let head_dim = o.len();
    for start in (0..head_dim).step_by(I::LANES) {
        let mut sum = I::load(&o[start..]);
        for token in tokens.clone() {
            let weight = weights[token / F::DEPTH].number(token % F::DEPTH);
            let units = &values[token / P::DEPTH * head_dim + start..];
            let value = P::load::<I>(units, token % P::DEPTH);
            sum = I::mul_add_lanes(I::splat(weight), value, sum);
        }
        I::store(sum, &mut o[start..]);
    }
}
