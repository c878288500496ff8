//! The inside of a KV block: keys and values of 16 tokens and one head, as the kernels read them.
//!
//! ```text
//!   cache of a layer   [num_blocks][num_kv_heads][ K | V ]        a half is 16 * head_dim numbers;
//!                                                                blocks may lie apart
//!   f32    K [head_dim][16]         V [16][head_dim]
//!   bf16   K [head_dim / 2][16][2]  V [8][head_dim][2]            pairs along the summed axis
//! ```
//!
//! Scores sum over coordinates with one token per lane, so K is transposed and needs no horizontal
//! sum; the weighted sum runs over tokens with one coordinate per lane. Both halves are panels of
//! [`crate::gemm::accumulator`].

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::element::Packed,
};

/// Tokens of a block.
pub const BLOCK_SIZE: usize = 16;
const _: () = assert!(
    BLOCK_SIZE == crate::isa::BLOCK,
    "conversions take the tokens of a block at a time"
);

/// A head has a multiple of this many coordinates.
pub const HEAD_DIM_STEP: usize = 16;

/// Most coordinates of a head.
pub const MAX_HEAD_DIM: usize = 512;

/// Shape of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Coordinates of a head; a multiple of [`HEAD_DIM_STEP`].
    pub head_dim: usize,
    /// Elements from the start of a block to that of the next: those of its heads, or more where a block holds
    /// several layers side by side.
    pub block_stride: usize,
}

impl CacheShape {
    /// Describes a cache of numbers whose blocks lie one behind the other.
    #[must_use]
    pub fn contiguous(num_blocks: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        let head_len = 2 * BLOCK_SIZE * head_dim;
        Self {
            num_blocks,
            num_kv_heads,
            head_dim,
            block_stride: num_kv_heads.saturating_mul(head_len),
        }
    }

    /// Checks a cache against its shape.
    ///
    /// # Errors
    /// If the head size is unsupported or the length of the cache is another.
    pub fn check(&self, cache_len: usize) -> Result<(), ArgumentError> {
        self.check_head()?;
        expect_len(self, self.head_len(), cache_len)
    }

    /// Checks the head size.
    ///
    /// # Errors
    /// If it is unsupported.
    pub(crate) fn check_head(&self) -> Result<(), ArgumentError> {
        let is_multiple = self.head_dim.is_multiple_of(HEAD_DIM_STEP);
        if self.head_dim == 0 || self.head_dim > MAX_HEAD_DIM || !is_multiple {
            return Err(ArgumentError::new(
                "head_dim",
                format_args!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"),
                self.head_dim,
            ));
        }
        Ok(())
    }

    /// Where a head of a block starts, whose heads take so many elements each.
    #[inline(always)]
    pub fn head_start(&self, block: usize, kv_head: usize, head_len: usize) -> usize {
        block * self.block_stride + kv_head * head_len
    }

    /// Elements of one head in one block, keys and values.
    pub fn head_len(&self) -> usize {
        2 * BLOCK_SIZE * self.head_dim
    }
}

/// Checks the length of a cache whose heads take so many elements each in a block, and that no two blocks overlap.
pub(crate) fn expect_len(
    shape: &CacheShape,
    head_len: usize,
    cache_len: usize,
) -> Result<(), ArgumentError> {
    let CacheShape {
        num_blocks,
        num_kv_heads,
        block_stride,
        ..
    } = *shape;
    let block_len = num_kv_heads.saturating_mul(head_len);
    let gaps = num_blocks.saturating_sub(1).checked_mul(block_stride);
    let len = gaps.and_then(|gaps| gaps.checked_add(block_len));
    let (Some(_), Some(len)) = (num_blocks.checked_mul(block_len), len) else {
        let got = format_args!("{num_blocks} blocks of {num_kv_heads} heads");
        return Err(ArgumentError::new("cache", "a size in memory", got));
    };
    if num_blocks > 1 && block_stride < block_len {
        let expected = format_args!("blocks at least {block_len} elements apart");
        return Err(ArgumentError::new("cache", expected, block_stride));
    }
    let len = if num_blocks == 0 { 0 } else { len };
    expect_equal("cache", "this many elements:", len, cache_len)
}

/// Checks the one block size that there is.
///
/// # Errors
/// If it is another.
pub fn check_block_size(block_size: usize) -> Result<(), ArgumentError> {
    expect_equal("block_size", "the only size", BLOCK_SIZE, block_size)
}

/// Writes the key and value of one token to its place in one head of a block.
pub(super) fn pack<T: Element>(head: &mut [T], token: usize, key: &[T], value: &[T]) {
    let (keys, values) = head.split_at_mut(head.len() / 2);
    put_key::<T, T>(keys, token, key);
    put_value::<T, T>(values, token, value);
}

/// Puts a key, as numbers or codes, to its place in the keys of a block that is laid out for `T`.
#[inline(always)]
pub(super) fn put_key<T: Element, C: Copy>(keys: &mut [C], token: usize, key: &[C]) {
    let depth = T::Packed::DEPTH;
    // By lines whose length the compiler knows, so that no place is checked for each number.
    let units = key.chunks_exact(depth);
    for (line, unit) in keys.chunks_exact_mut(BLOCK_SIZE * depth).zip(units) {
        line[token * depth..][..depth].copy_from_slice(unit);
    }
}

/// Puts a value to its place in the values of a block.
#[inline(always)]
pub(super) fn put_value<T: Element, C: Copy>(values: &mut [C], token: usize, value: &[C]) {
    let depth = T::Packed::DEPTH;
    let line = &mut values[token / depth * value.len() * depth..][..value.len() * depth];
    for (unit, &number) in line.chunks_exact_mut(depth).zip(value) {
        unit[token % depth] = number;
    }
}

/// Index in the key half of coordinate `d` of token `token`.
#[cfg(test)]
pub(super) fn key_index<T: Element>(token: usize, d: usize) -> usize {
    let depth = T::Packed::DEPTH;
    (d / depth * BLOCK_SIZE + token) * depth + d % depth
}

/// Index in the value half of coordinate `d` of token `token`.
#[cfg(test)]
pub(super) fn value_index<T: Element>(token: usize, d: usize, head_dim: usize) -> usize {
    let depth = T::Packed::DEPTH;
    (token / depth * head_dim + d) * depth + token % depth
}

/// Reads what [`pack`] wrote.
#[cfg(test)]
pub(super) fn unpack<T: Element>(head: &[T], token: usize, key: &mut [T], value: &mut [T]) {
    let (keys, values) = head.split_at(head.len() / 2);
    let head_dim = value.len();
    for (d, number) in key.iter_mut().enumerate() {
        *number = keys[key_index::<T>(token, d)];
    }
    for (d, number) in value.iter_mut().enumerate() {
        *number = values[value_index::<T>(token, d, head_dim)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16;

    fn places_are_distinct<T: Element>(head_dim: usize) {
        let mut seen = vec![0; BLOCK_SIZE * head_dim];
        let mut seen_values = seen.clone();
        for token in 0..BLOCK_SIZE {
            for d in 0..head_dim {
                seen[key_index::<T>(token, d)] += 1;
                seen_values[value_index::<T>(token, d, head_dim)] += 1;
            }
        }
        assert!(seen.iter().chain(&seen_values).all(|&count| count == 1));
    }

    #[test]
    fn a_shape_that_no_memory_can_have_is_an_error() {
        let shape = CacheShape::contiguous(1 << 40, 1 << 20, 16);
        let error = shape.check(0).expect_err("2^69 elements");
        assert_eq!(
            error.to_string(),
            "cache: expected a size in memory, got 1099511627776 blocks of 1048576 heads"
        );
        assert!(crate::attention::kv_format::check_int8(shape, 0).is_err());
    }

    #[test]
    fn blocks_that_lie_apart_end_with_the_heads_of_the_last() {
        let shape = CacheShape {
            block_stride: 5000,
            ..CacheShape::contiguous(3, 2, 16)
        };
        assert!(shape.check(2 * 5000 + 2 * shape.head_len()).is_ok());
        assert!(shape.check(3 * 5000).is_err());
        let shape = CacheShape {
            block_stride: 2 * shape.head_len() - 1,
            ..shape
        };
        let error = shape.check(0).expect_err("blocks overlap").to_string();
        assert_eq!(
            error,
            "cache: expected blocks at least 1024 elements apart, got 1023"
        );
    }

    #[test]
    fn no_two_numbers_share_a_place() {
        for head_dim in [8, 16, 24, 64, 128, 256, 512] {
            places_are_distinct::<f32>(head_dim);
            places_are_distinct::<bf16>(head_dim);
        }
    }

    #[test]
    fn layouts_are_the_documented_ones() {
        assert_eq!(key_index::<f32>(3, 5), 5 * 16 + 3);
        assert_eq!(value_index::<f32>(3, 5, 64), 3 * 64 + 5);
        assert_eq!(key_index::<bf16>(3, 5), 2 * 32 + 3 * 2 + 1);
        assert_eq!(value_index::<bf16>(3, 5, 64), 128 + 5 * 2 + 1);
    }

    #[test]
    fn unpack_gives_what_pack_wrote() {
        let mut head = vec![f32::NAN; 2 * BLOCK_SIZE * 24];
        let key: Vec<f32> = (0..24).map(|d| d as f32).collect();
        let value: Vec<f32> = (0..24).map(|d| -(d as f32)).collect();
        pack(&mut head, 7, &key, &value);
        let (mut k, mut v) = (vec![0.0; 24], vec![0.0; 24]);
        unpack(&head, 7, &mut k, &mut v);
        assert_eq!((k, v), (key, value));
        assert_eq!(head.iter().filter(|x| !x.is_nan()).count(), 48);
    }
}
