//! A span of a row as attention reads it: the memory of its blocks, and the scales of its tokens.

use crate::{attention::kv_layout::BLOCK_SIZE, isa::element::Packed};

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
    /// Keys of the head that is read next, as the cache has them: asked for meanwhile.
    pub next_keys: *const u8,
    /// Its values.
    pub next_values: *const u8,
}

impl<P> Block<'_, P> {
    /// No memory.
    pub const EMPTY: Self = Self {
        keys: &[],
        values: &[],
        next_keys: std::ptr::null(),
        next_values: std::ptr::null(),
    };
}

/// The blocks of a span; where a row has fewer, others that no query sees stand in for them.
pub type Span<'a, P> = [Block<'a, P>; SPAN_BLOCKS];

/// How a cache keeps keys and values, for the compiler.
pub trait KvFormat: 'static {
    /// Whether the cache holds eight-bit codes with scales.
    const IS_INT8: bool;

    /// Bytes that hold so many units.
    fn bytes<P: Packed>(units: usize) -> usize;
}

/// In the place of scales where numbers need none.
const NO_SCALES: PerToken<f32> = [[1.0; BLOCK_SIZE]; SPAN_BLOCKS];

/// The scales of the tokens of a span.
#[derive(Clone, Copy)]
pub struct Scales<'a> {
    /// Scales of keys.
    pub keys: &'a PerToken<f32>,
    /// Scales of values.
    pub values: &'a PerToken<f32>,
}

impl Scales<'static> {
    /// The scales of a cache of numbers: all are 1.
    pub const NONE: Self = Self {
        keys: &NO_SCALES,
        values: &NO_SCALES,
    };
}

/// What the scores of a block are multiplied by.
#[inline(always)]
pub(crate) fn factors_of<K: KvFormat>(scale: f32, keys: &[f32; BLOCK_SIZE]) -> [f32; BLOCK_SIZE] {
    if K::IS_INT8 {
        *keys
    } else {
        [scale; BLOCK_SIZE]
    }
}
