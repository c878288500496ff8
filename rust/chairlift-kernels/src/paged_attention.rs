//! Causal attention of a ragged batch over paged keys and values.
//!
//! Rows are cut into work items: some queries of one row, with the query heads that share one KV
//! head. Prefill chunks and decodes differ only in how many queries an item has.
//!
//! ```text
//!   one row           context (in the cache)           chunk of this step (already in the cache)
//!   positions   0 . . . . . . . . . . . . . . . . . . | . . . . . . . . . |
//!   blocks      [   16   ][   16   ][   16   ][   16   ][   16   ][   16 ~~~~]   ~ owned, unwritten
//!   item 0       <------- sees --------------------------------->
//!   item 1       <------- sees ------------------------------------------->
//! ```
//!
//! Blocks lie at absolute positions and are processed left to right, one [`State::update`] each, so
//! that a query computes the same bits in a decode and in any chunk.

use crate::aligned::Aligned;
use crate::disjoint::Disjoint;
use crate::dispatch::{Kernel, dispatch};
use crate::element::Packed;
use crate::error::{ArgumentError, expect_equal};
use crate::isa::Isa;
use crate::layout::{BLOCK_SIZE, CacheShape};
use crate::pool;
use crate::rows::{Rows, RowsMut};
use crate::softmax::State;
use crate::tile::{Ahead, Panel, accumulate, balanced, with_rows};
use crate::work_items::{ITEM_ROWS, Item, Sequences, first_visible, shares, work_items};
use crate::{Element, bf16};
use std::ops::Range;

/// Cost of items, times `head_dim`, that is worth waking a thread for: some ten microseconds.
const GRAIN: usize = 1 << 13;

/// One layer's cache and how to attend to it.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a, T> {
    /// See [`crate::layout`].
    pub cache: &'a [T],
    /// Shape of `cache`.
    pub shape: CacheShape,
    /// Factor of the scores.
    pub scale: f32,
    /// A token sees itself and the `window - 1` before it.
    pub window: Option<usize>,
}

/// Computes attention for all queries of a step.
///
/// Shapes: `query`, `out` `[T, num_heads * head_dim]`.
///
/// # Errors
/// If the arguments do not fit each other, or a block that a query sees is outside the cache.
pub fn paged_attention<T: AttentionElement>(
    query: Rows<'_, T>,
    layer: &Layer<'_, T>,
    sequences: &Sequences<'_>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let CacheShape {
        num_kv_heads,
        head_dim,
        ..
    } = layer.shape;
    layer.shape.check(layer.cache.len())?;
    let kv_width = num_kv_heads * head_dim;
    if kv_width == 0 || query.width() == 0 || !query.width().is_multiple_of(kv_width) {
        let expected = format_args!("a width that is a multiple of {kv_width}");
        return Err(ArgumentError::new("query", expected, query.width()));
    }
    expect_equal("out", "the width of query,", query.width(), out.width())?;
    expect_equal("out", "as many tokens as query:", query.len(), out.len())?;
    let group = query.width() / kv_width;
    let items = work_items(layer.shape, layer.window, sequences, group, query.len())?;
    let shares = shares(&items, pool::num_threads(), GRAIN.div_ceil(head_dim));
    let stride = out.stride();
    let out = Disjoint::new(out.into_slice());
    pool::run(shares.len(), &|part| {
        T::attend(Attend {
            query,
            layer,
            block_table: sequences.block_table,
            group,
            items: &items[shares[part].clone()],
            out,
            stride,
        });
    });
    Ok(())
}

/// An element type whose kernel is compiled here, once, and not in each crate that calls it.
pub trait AttentionElement: Element {
    /// Computes one thread's items.
    #[doc(hidden)]
    fn attend(share: Attend<'_, Self>);
}

impl AttentionElement for f32 {
    fn attend(share: Attend<'_, Self>) {
        dispatch(share);
    }
}

impl AttentionElement for bf16 {
    fn attend(share: Attend<'_, Self>) {
        dispatch(share);
    }
}

/// One thread's items.
pub struct Attend<'a, T> {
    query: Rows<'a, T>,
    layer: &'a Layer<'a, T>,
    block_table: Rows<'a, i32>,
    group: usize,
    items: &'a [Item],
    out: Disjoint<'a, T>,
    stride: usize,
}

/// One head of one block.
struct Block<'a, P> {
    /// Position of its first token.
    first_token: usize,
    /// `[head_dim][16]`
    keys: Panel<'a, P>,
    /// `[16][head_dim]`
    values: Panel<'a, P>,
}

impl<P: Packed> Block<'_, P> {
    /// The same block in single numbers, which several tiles then share.
    #[inline(always)]
    fn widened<'a, I: Isa>(&self, memory: &'a mut [f32]) -> Block<'a, f32> {
        let (keys, values) = memory.split_at_mut(memory.len() / 2);
        let head_dim = keys.len() / BLOCK_SIZE;
        Block {
            first_token: self.first_token,
            keys: widened::<I, P>(self.keys, BLOCK_SIZE, keys),
            values: widened::<I, P>(self.values, head_dim, values),
        }
    }
}

#[inline(always)]
fn widened<'a, I: Isa, P: Packed>(
    panel: Panel<'_, P>,
    width: usize,
    numbers: &'a mut [f32],
) -> Panel<'a, f32> {
    let lines = numbers.chunks_exact_mut(width * P::DEPTH);
    for (numbers, line) in lines.zip(panel.lines(0, width, width)) {
        for (index, numbers) in numbers.chunks_exact_mut(width).enumerate() {
            for start in (0..width).step_by(I::LANES) {
                I::store(P::load::<I>(&line[start..], index), &mut numbers[start..]);
            }
        }
    }
    Panel {
        units: numbers,
        ahead: Ahead::Nothing,
    }
}

/// Memory of one item, row-major over its queries times heads.
struct Scratch {
    /// Per tile `[head_dim][R]`: scaled queries.
    q: Aligned<f32>,
    m: Vec<f32>,
    d: Vec<[f32; BLOCK_SIZE]>,
    o: Aligned<f32>,
    /// A block in single numbers.
    wide: Aligned<f32>,
}

impl Scratch {
    /// The state of the tile that has rows `first..first + R`.
    #[inline(always)]
    fn state<const R: usize>(&mut self, first: usize, head_dim: usize) -> State<'_, R> {
        State {
            m: self.m[first..].first_chunk_mut().expect("a tile"),
            d: self.d[first..].first_chunk_mut().expect("a tile"),
            o: &mut self.o[first * head_dim..(first + R) * head_dim],
        }
    }
}

impl<T: Element> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let rows = ITEM_ROWS.max(self.group);
        let numbers = rows * self.layer.shape.head_dim;
        let mut scratch = Scratch {
            q: Aligned::zeroed(numbers),
            m: vec![0.0; rows],
            d: vec![[0.0; BLOCK_SIZE]; rows],
            o: Aligned::zeroed(numbers),
            wide: Aligned::zeroed(self.layer.shape.head_len()),
        };
        for item in self.items {
            if I::LANES == BLOCK_SIZE {
                self.attend::<I, 1>(item, &mut scratch);
            } else {
                self.attend::<I, 2>(item, &mut scratch);
            }
        }
    }
}

impl<T: Element> Attend<'_, T> {
    /// One item; N registers hold a number for each token of a block.
    #[inline(always)]
    fn attend<I: Isa, const N: usize>(&self, item: &Item, scratch: &mut Scratch) {
        let shape = self.layer.shape;
        let rows = item.tokens.len() * self.group;
        for tile in balanced(rows, I::ROWS) {
            self.load_queries(item, tile, &mut scratch.q);
        }
        for row in 0..rows {
            scratch.state::<1>(row, shape.head_dim).clear();
        }
        for index in item.blocks.clone() {
            let block = self.block(item, index);
            // Worth its stores from three tiles on.
            if T::Packed::DEPTH > 1 && rows > 2 * I::ROWS {
                let mut wide = std::mem::replace(&mut scratch.wide, Aligned::zeroed(0));
                self.add_block::<I, f32, N>(item, &block.widened::<I>(&mut wide), scratch);
                scratch.wide = wide;
            } else {
                self.add_block::<I, T::Packed, N>(item, &block, scratch);
            }
        }
        for row in 0..rows {
            let mut state = scratch.state::<1>(row, shape.head_dim);
            state.normalize();
            self.store(item, row, state.o);
        }
    }

    /// Block `index` of an item's row, with the one after it to be asked for meanwhile.
    #[inline(always)]
    fn block(&self, item: &Item, index: usize) -> Block<'_, T::Packed> {
        let shape = self.layer.shape;
        let table = self.block_table.row(item.row);
        let start = |index: usize| shape.head_start(table[index] as usize, item.kv_head);
        let next = if index + 1 < item.blocks.end {
            index + 1
        } else {
            index
        };
        let ahead =
            (start(next).cast_signed() - start(index).cast_signed()) * size_of::<T>().cast_signed();
        let head = &self.layer.cache[start(index)..][..shape.head_len()];
        let (keys, values) = head.split_at(head.len() / 2);
        let panel = |numbers| Panel {
            units: T::as_packed(numbers),
            ahead: Ahead::Bytes(ahead),
        };
        Block {
            first_token: index * BLOCK_SIZE,
            keys: panel(keys),
            values: panel(values),
        }
    }

    /// Token and columns of row `row` of an item: heads of a token are neighbours.
    #[inline(always)]
    fn place(&self, item: &Item, row: usize) -> (usize, Range<usize>) {
        let head_dim = self.layer.shape.head_dim;
        let head = item.kv_head * self.group + row % self.group;
        let token = item.tokens.start + row / self.group;
        (token, head * head_dim..(head + 1) * head_dim)
    }

    #[inline(always)]
    fn load_queries(&self, item: &Item, tile: Range<usize>, q: &mut [f32]) {
        let head_dim = self.layer.shape.head_dim;
        let q = &mut q[tile.start * head_dim..tile.end * head_dim];
        for r in 0..tile.len() {
            let (token, columns) = self.place(item, tile.start + r);
            let coordinates = q.chunks_exact_mut(tile.len());
            for (q, x) in coordinates.zip(&self.query.row(token)[columns]) {
                q[r] = x.to_f32() * self.layer.scale;
            }
        }
    }

    /// All rows of an item against one block.
    #[inline(always)]
    fn add_block<I: Isa, P: Packed, const N: usize>(
        &self,
        item: &Item,
        block: &Block<'_, P>,
        scratch: &mut Scratch,
    ) {
        for tile in balanced(item.tokens.len() * self.group, I::ROWS) {
            with_rows!(I::ROWS, tile.len(), |R| {
                self.add_tile::<I, P, R, N>(item, tile.start, block, scratch);
            });
        }
    }

    /// Scores of a tile against one block, and the update of its states.
    #[inline(always)]
    fn add_tile<I: Isa, P: Packed, const R: usize, const N: usize>(
        &self,
        item: &Item,
        first: usize,
        block: &Block<'_, P>,
        scratch: &mut Scratch,
    ) {
        let head_dim = self.layer.shape.head_dim;
        let start = block.first_token;
        let Some(visible) = self.visible::<R>(item, first, start) else {
            return;
        };
        let q = &scratch.q[first * head_dim..(first + R) * head_dim];
        let (q, _) = q.as_chunks::<R>();
        let keys = block.keys.lines(0, BLOCK_SIZE, BLOCK_SIZE);
        let sums = accumulate::<I, P, R, N>([[I::splat(0.0); N]; R], q, keys);
        let mut scores = [[0.0; BLOCK_SIZE]; R];
        for r in 0..R {
            for n in 0..N {
                I::store(sums[r][n], &mut scores[r][n * I::LANES..]);
            }
        }
        let mut state = scratch.state::<R>(first, head_dim);
        state.update::<I, P, N>(&scores, block.values, &visible);
    }

    /// Which tokens of the block at `start` the rows of a tile see; `None` if they see none.
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
        // Nearly every block, and without a division per row.
        if start + BLOCK_SIZE <= earliest + 1 && first_visible(latest, window) <= start {
            return Some([const { 0..BLOCK_SIZE }; R]);
        }
        let mut visible = [const { 0..0 }; R];
        let mut is_hidden = true;
        for (r, visible) in visible.iter_mut().enumerate() {
            let position = item.position + (first + r) / self.group;
            let seen =
                first_visible(position, window).max(start)..(position + 1).min(start + BLOCK_SIZE);
            if !seen.is_empty() {
                *visible = seen.start - start..seen.end - start;
                is_hidden = false;
            }
        }
        (!is_hidden).then_some(visible)
    }

    #[inline(always)]
    fn store(&self, item: &Item, row: usize, o: &[f32]) {
        let (token, columns) = self.place(item, row);
        let base = token * self.stride;
        // SAFETY: tokens and heads of an item are its own, and items belong to one part.
        let out = unsafe { self.out.take(base + columns.start..base + columns.end) };
        for (out, &o) in out.iter_mut().zip(o) {
            *out = T::from_f32(o);
        }
    }
}
