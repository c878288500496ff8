//! One thread's share of attention: items, span after span ([`crate::attention::paged_attention`]).

use crate::{
    Element,
    attention::{
        kv_format::{DequantizedSpan, Int8Kv, KvView, Numbers, int8_head_len},
        kv_layout::BLOCK_SIZE,
        layer::AttentionLayer,
        softmax::SoftmaxState,
        span::{CapScores, TileScores},
        span_types::{Block, KvFormat, PerToken, SPAN, SPAN_BLOCKS, Scales, Span},
        work_items::{ITEM_ROWS, Item, first_visible},
    },
    bf16,
    gemm::{
        accumulator::{balanced, with_rows},
        grouped::Widen,
        operand::Operand,
        rotation::RotateHeads,
    },
    isa::{
        Isa,
        dispatch::{Kernel, noinline},
        element::Packed,
    },
    memory::{aligned::Aligned, disjoint::Disjoint, rows::Rows},
};
use bytemuck::Zeroable;
use std::marker::PhantomData;
use std::ops::Range;

/// Work in `bf16`, by dot products of pairs if the machine has them: queries stay pairs, as keys are, and
/// weights become pairs, as values are. Other bits than those of single numbers, the same for all rows.
pub struct Bf16DotOrFma<'a>(pub(crate) Attend<'a, bf16>);

impl Kernel for Bf16DotOrFma<'_> {
    type Output = ();

    const USES_BF16: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        if const { I::HAS_PAIR_DOT } {
            self.0.run_kept::<I, u32>();
        } else {
            self.0.run_kept::<I, f32>();
        }
    }
}

/// One thread's items.
pub struct Attend<'a, T> {
    pub(crate) query: Rows<'a, T>,
    pub(crate) layer: &'a AttentionLayer<'a, T>,
    pub(crate) block_table: Rows<'a, i32>,
    pub(crate) group: usize,
    pub(crate) items: &'a [Item],
    pub(crate) out: Disjoint<'a, T>,
    pub(crate) stride: usize,
}

/// A span of an item, by its index, and the one that comes next.
type Places<'a> = ((&'a Item, usize), (&'a Item, usize));

/// The spans that some query of an item sees.
#[inline(always)]
fn spans(item: &Item) -> Range<usize> {
    item.blocks.start / SPAN_BLOCKS..item.blocks.end.div_ceil(SPAN_BLOCKS)
}

/// Rows of a tile at most.
const fn max_tile_rows<I: Isa, F: Operand<P>, P: Packed>() -> usize {
    if I::LANES == BLOCK_SIZE {
        I::ROWS / 2
    } else if F::DEPTH < P::DEPTH && I::ROWS > 2 {
        // The mask that parts units leaves no register for a last sum, and one in memory is what all others
        // wait for.
        I::ROWS - 1
    } else {
        I::ROWS
    }
}

/// Memory of one item, row-major over its queries times heads.
struct Scratch<F: Zeroable + Copy> {
    /// Per tile `[head_dim / DEPTH][R]`: queries.
    q: Aligned<F>,
    m: Vec<f32>,
    d: Vec<[f32; BLOCK_SIZE]>,
    o: Aligned<f32>,
    /// The scores of one tile and span.
    scores: Vec<PerToken<f32>>,
    weights: Vec<PerToken<F>>,
}

impl<F: Zeroable + Copy> Scratch<F> {
    /// The state of the tile that has rows `first..first + R`.
    #[inline(always)]
    fn state<const R: usize>(&mut self, first: usize, head_dim: usize) -> SoftmaxState<'_, R> {
        SoftmaxState {
            m: self.m[first..].first_chunk_mut().expect("a tile"),
            d: self.d[first..].first_chunk_mut().expect("a tile"),
            o: &mut self.o[first * head_dim..(first + R) * head_dim],
        }
    }
}

impl Kernel for Attend<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        self.run_kept::<I, f32>();
    }
}

impl<T: Element> Attend<'_, T> {
    #[inline(always)]
    fn run_kept<I: Isa, F: Operand<T::Packed>>(&self) {
        match self.layer.cache {
            KvView::Numbers(_) => self.run_with::<I, F, Numbers>(DequantizedSpan::new(0)),
            KvView::Int8(_) => {
                self.run_with::<I, F, Int8Kv>(DequantizedSpan::new(self.layer.shape.head_dim));
            }
        }
    }

    /// All items, with factors F.
    #[inline(always)]
    fn run_with<I: Isa, F: Operand<T::Packed>, K: KvFormat>(
        &self,
        mut widened: DequantizedSpan<T::Packed>,
    ) {
        let rows = ITEM_ROWS.max(self.group);
        let numbers = rows * self.layer.shape.head_dim;
        let mut scratch = Scratch {
            q: Aligned::<F>::zeroed(numbers / F::DEPTH),
            m: vec![0.0; rows],
            d: vec![[0.0; BLOCK_SIZE]; rows],
            o: Aligned::zeroed(numbers),
            scores: vec![[[0.0; BLOCK_SIZE]; SPAN_BLOCKS]; max_tile_rows::<I, F, T::Packed>()],
            weights: vec![
                [[F::default(); BLOCK_SIZE]; SPAN_BLOCKS];
                max_tile_rows::<I, F, T::Packed>()
            ],
        };
        for (index, item) in self.items.iter().enumerate() {
            let next = self.items.get(index + 1).unwrap_or(item);
            // Four registers per row where there are 32 of them, else two.
            if const { I::LANES == BLOCK_SIZE } {
                self.attend::<I, F, K, 1, 4, 4>(item, next, &mut widened, &mut scratch);
            } else {
                self.attend::<I, F, K, 2, 1, 2>(item, next, &mut widened, &mut scratch);
            }
        }
    }

    /// One item, with the registers of [`crate::attention::span`].
    #[inline(always)]
    fn attend<
        I: Isa,
        F: Operand<T::Packed>,
        K: KvFormat,
        const N: usize,
        const B: usize,
        const V: usize,
    >(
        &self,
        item: &Item,
        next: &Item,
        widened: &mut DequantizedSpan<T::Packed>,
        scratch: &mut Scratch<F>,
    ) {
        let head_dim = self.layer.shape.head_dim;
        let rows = item.tokens.len() * self.group;
        if K::IS_INT8 {
            self.rotate_queries::<I>(item, &mut scratch.o[..rows * head_dim]);
        }
        for tile in balanced(rows, const { max_tile_rows::<I, F, T::Packed>() }) {
            self.load_queries::<I, F, K>(item, tile, scratch);
        }
        for row in 0..rows {
            scratch.state::<1>(row, head_dim).clear();
        }
        for index in spans(item) {
            // While a span is read, the one after it is asked for: by a single tile, not by many, each of
            // which would ask for what the first got. Those ask for what they read.
            let (next, next_index) = if rows > const { max_tile_rows::<I, F, T::Packed>() } {
                (item, index)
            } else if index + 1 < spans(item).end {
                (item, index + 1)
            } else {
                (next, spans(next).start)
            };
            let places = ((item, index), (next, next_index));
            let (span, scales) = if K::IS_INT8 {
                self.widen::<I>(places, widened)
            } else {
                (self.span(places), Scales::NONE)
            };
            for tile in balanced(rows, const { max_tile_rows::<I, F, T::Packed>() }) {
                with_rows!(max_tile_rows::<I, F, T::Packed>(), tile.len(), |R| {
                    let span = (index * SPAN, &span, scales);
                    self.add_tile::<I, F, K, R, N, B, V>(item, tile.start, span, scratch);
                });
            }
        }
        for row in 0..rows {
            let mut state = scratch.state::<1>(row, head_dim);
            if let Some(sinks) = self.layer.sinks {
                let head = item.kv_head * self.group + row % self.group;
                state.add_sink::<I>(sinks[head] * std::f32::consts::LOG2_E);
            }
            state.normalize();
        }
        let o = &mut scratch.o[..rows * head_dim];
        if K::IS_INT8 {
            noinline::<I, _>(RotateHeads { heads: o, head_dim });
        }
        for (row, o) in o.chunks_exact(head_dim).enumerate() {
            self.store::<I>(item, row, o);
        }
    }

    /// Span `index` of an item's row, and where the same of `next` lies.
    #[inline(always)]
    fn span(&self, ((item, index), next): Places<'_>) -> Span<'_, T::Packed> {
        let KvView::Numbers(cache) = self.layer.cache else {
            unreachable!("codes are widened")
        };
        let head_len = self.layer.shape.head_len();
        let heads = self.heads(item, index, head_len);
        let next = self.heads(next.0, next.1, head_len);
        let mut span = [const { Block::EMPTY }; SPAN_BLOCKS];
        for (block, memory) in span.iter_mut().enumerate() {
            let head = &cache[heads[block]..][..head_len];
            let (keys, values) = head.split_at(head_len / 2);
            let next = cache.as_ptr().wrapping_add(next[block]);
            *memory = Block {
                keys: T::as_packed(keys),
                values: T::as_packed(values),
                next_keys: next.cast(),
                next_values: next.wrapping_add(head_len / 2).cast(),
            };
        }
        span
    }

    /// The span of an int8 cache, dequantized into `widened`, and its scales.
    #[inline(always)]
    fn widen<'w, I: Isa>(
        &self,
        ((item, index), next): Places<'_>,
        widened: &'w mut DequantizedSpan<T::Packed>,
    ) -> (Span<'w, T::Packed>, Scales<'w>) {
        let KvView::Int8(cache) = self.layer.cache else {
            unreachable!("numbers are as they are")
        };
        let head_len = int8_head_len(self.layer.shape.head_dim);
        let heads = self.heads(item, index, head_len);
        let next = self.heads(next.0, next.1, head_len);
        widened.span::<I>(cache, heads, next, self.scale())
    }

    /// Operand of the scores that makes powers of 2 of powers of e.
    #[inline(always)]
    fn scale(&self) -> f32 {
        self.layer.scale * std::f32::consts::LOG2_E
    }

    /// Where the heads of the blocks of span `index` of an item's row start in the cache; for a block that it
    /// does not see, that of the nearest that it sees.
    #[inline(always)]
    fn heads(&self, item: &Item, index: usize, head_len: usize) -> [usize; SPAN_BLOCKS] {
        let blocks = self.block_table.row(item.row);
        let mut heads = [0; SPAN_BLOCKS];
        for (block, head) in heads.iter_mut().enumerate() {
            let index = index * SPAN_BLOCKS + block;
            let index = index.clamp(item.blocks.start, item.blocks.end - 1);
            let block = blocks[index] as usize;
            *head = self.layer.shape.head_start(block, item.kv_head, head_len);
        }
        heads
    }

    /// Token and columns of row `row` of an item: heads of a token are neighbours.
    #[inline(always)]
    fn place(&self, item: &Item, row: usize) -> (usize, Range<usize>) {
        let head_dim = self.layer.shape.head_dim;
        let head = item.kv_head * self.group + row % self.group;
        let token = item.tokens.start + row / self.group;
        (token, head * head_dim..(head + 1) * head_dim)
    }

    /// Puts the queries of an item to `o`, rotated as the keys of an int8 cache are.
    #[inline(always)]
    fn rotate_queries<I: Isa>(&self, item: &Item, o: &mut [f32]) {
        let head_dim = self.layer.shape.head_dim;
        for (row, o) in o.chunks_exact_mut(head_dim).enumerate() {
            let (token, columns) = self.place(item, row);
            Widen {
                row: &self.query.row(token)[columns],
                numbers: o,
            }
            .run::<I>();
        }
        noinline::<I, _>(RotateHeads { heads: o, head_dim });
    }

    /// Packs the queries of a tile; those of an int8 cache are in `o`.
    #[inline(always)]
    fn load_queries<I: Isa, F: Operand<T::Packed>, K: KvFormat>(
        &self,
        item: &Item,
        tile: Range<usize>,
        scratch: &mut Scratch<F>,
    ) {
        let head_dim = self.layer.shape.head_dim;
        let len = head_dim / F::DEPTH;
        let q = &mut scratch.q[tile.start * len..tile.end * len];
        for r in 0..tile.len() {
            let row = tile.start + r;
            let (token, columns) = self.place(item, row);
            let (query, _) = self.query.row(token)[columns].as_chunks::<BLOCK_SIZE>();
            let (rotated, _) = scratch.o[row * head_dim..][..head_dim].as_chunks();
            let mut place = r;
            for (numbers, rotated) in query.iter().zip(rotated) {
                let mut numbers = *numbers;
                if K::IS_INT8 {
                    T::round_block::<I>(rotated, &mut numbers);
                }
                for numbers in numbers.chunks_exact(T::Packed::DEPTH) {
                    let unit = T::pack(numbers);
                    for index in 0..T::Packed::DEPTH / F::DEPTH {
                        q[place] = F::part(unit, index);
                        place += tile.len();
                    }
                }
            }
        }
    }

    /// Scores of a tile against one span, and the update of its states.
    #[inline(always)]
    fn add_tile<
        I: Isa,
        F: Operand<T::Packed>,
        K: KvFormat,
        const R: usize,
        const N: usize,
        const B: usize,
        const V: usize,
    >(
        &self,
        item: &Item,
        first: usize,
        (start, span, scales): (usize, &Span<'_, T::Packed>, Scales<'_>),
        scratch: &mut Scratch<F>,
    ) {
        let head_dim = self.layer.shape.head_dim;
        let Some(visible) = self.visible::<R>(item, first, start) else {
            return;
        };
        let len = head_dim / F::DEPTH;
        let (q, _) = scratch.q[first * len..(first + R) * len].as_chunks::<R>();
        let tile_scores = scratch.scores.first_chunk_mut().expect("a tile");
        let seen = visible.iter().map(|visible| visible.end).max().unwrap_or(0);
        noinline::<I, _>(TileScores::<F, T::Packed, K, R, N, B> {
            q,
            span,
            num_blocks: seen.div_ceil(BLOCK_SIZE),
            scores: &mut *tile_scores,
            kept: PhantomData,
        });
        let (mut scale, mut scales) = (self.scale(), scales);
        if let Some(cap) = self.layer.soft_cap {
            noinline::<I, _>(CapScores::<K, R> {
                scores: &mut *tile_scores,
                num_blocks: seen.div_ceil(BLOCK_SIZE),
                scale,
                keys: scales.keys,
                cap: cap * std::f32::consts::LOG2_E,
                kept: PhantomData,
            });
            (scale, scales.keys) = (1.0, Scales::NONE.keys);
        }
        let mut state = SoftmaxState {
            m: scratch.m[first..].first_chunk_mut().expect("a tile"),
            d: scratch.d[first..].first_chunk_mut().expect("a tile"),
            o: &mut scratch.o[first * head_dim..(first + R) * head_dim],
        };
        let weights = scratch.weights.first_chunk_mut().expect("a tile");
        state.update::<I, F, _, K, N, V>(tile_scores, scale, weights, span, scales, &visible);
    }

    /// Which tokens of the span at `start` the rows of a tile see; `None` if they see none.
    #[inline(always)]
    fn visible<const R: usize>(
        &self,
        item: &Item,
        first: usize,
        start: usize,
    ) -> Option<[Range<usize>; R]> {
        let window = self.layer.window;
        let earliest = item.position + first / self.group;
        let latest = item.position + (first + R - 1) / self.group;
        // Nearly every span, and without a division per row.
        if start + SPAN <= earliest + 1 && first_visible(latest, window) <= start {
            return Some([const { 0..SPAN }; R]);
        }
        let mut visible = [const { 0..0 }; R];
        let mut is_hidden = true;
        for (r, visible) in visible.iter_mut().enumerate() {
            let position = item.position + (first + r) / self.group;
            let seen = first_visible(position, window).max(start)..(position + 1).min(start + SPAN);
            if !seen.is_empty() {
                *visible = seen.start - start..seen.end - start;
                is_hidden = false;
            }
        }
        (!is_hidden).then_some(visible)
    }

    #[inline(always)]
    fn store<I: Isa>(&self, item: &Item, row: usize, o: &[f32]) {
        let (token, columns) = self.place(item, row);
        let base = token * self.stride;
        // SAFETY: tokens and heads of an item are its own, and items belong to one part.
        let out = unsafe { self.out.take(base + columns.start..base + columns.end) };
        for (out, o) in out.as_chunks_mut().0.iter_mut().zip(o.as_chunks().0) {
            T::round_block::<I>(o, out);
        }
    }
}
