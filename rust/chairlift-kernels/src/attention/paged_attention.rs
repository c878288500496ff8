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
//! Spans of four blocks lie at absolute positions and are processed left to right, one [`SoftmaxState::update`]
//! each, so that a query computes the same bits in a decode and in any chunk.

use crate::{
    Element,
    attention::{
        attend::{Attend, Bf16DotOrFma},
        kv_layout::CacheShape,
        layer::AttentionLayer,
        work_items::{Sequences, shares, work_items},
    },
    bf16,
    error::{ArgumentError, expect_equal},
    isa::dispatch::dispatch,
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
};

/// Cost of items, times `head_dim`, that is worth waking a thread for: some ten microseconds.
const GRAIN: usize = 1 << 13;

/// Computes attention for all queries of a step.
///
/// Shapes: `query`, `out` `[T, num_heads * head_dim]`.
///
/// # Errors
/// If the arguments do not fit each other, the scale or the cap is not positive, or a block that a query sees is
/// outside the cache.
pub fn paged_attention<T: AttentionElement>(
    query: Rows<'_, T>,
    layer: &AttentionLayer<'_, T>,
    sequences: &Sequences<'_>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let CacheShape {
        num_kv_heads,
        head_dim,
        ..
    } = layer.shape;
    layer.cache.check(layer.shape)?;
    if layer.scale.is_nan() || layer.scale <= 0.0 {
        return Err(ArgumentError::new("scale", "above 0", layer.scale));
    }
    if let Some(cap) = layer.soft_cap.filter(|cap| cap.is_nan() || *cap <= 0.0) {
        return Err(ArgumentError::new("soft_cap", "above 0", cap));
    }
    let kv_width = num_kv_heads * head_dim;
    if kv_width == 0 || query.width() == 0 || !query.width().is_multiple_of(kv_width) {
        let expected = format_args!("a width that is a multiple of {kv_width}");
        return Err(ArgumentError::new("query", expected, query.width()));
    }
    expect_equal("out", "the width of query,", query.width(), out.width())?;
    expect_equal("out", "as many tokens as query:", query.len(), out.len())?;
    let group = query.width() / kv_width;
    if let Some(sinks) = layer.sinks {
        expect_equal("sinks", "one per head:", num_kv_heads * group, sinks.len())?;
    }
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
        dispatch(Bf16DotOrFma(share));
    }
}
