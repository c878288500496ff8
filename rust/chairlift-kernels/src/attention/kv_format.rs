//! What a cache holds: numbers as they are, or eight-bit codes with a scale per token, head and half.
//!
//! ```text
//!   a head of a block in int8    [ codes of K | codes of V | 16 scales of K | 16 of V ]
//!                                  16 * head_dim bytes each  64 bytes each, f32
//! ```
//!
//! Codes lie where the numbers would ([`crate::attention::kv_layout`]) and are whole numbers that bf16 holds exactly: a span
//! is widened once, into a panel as of any keys and values. The scale of a token multiplies its score, or its
//! weight, so that no product of the sums is rounded for it.
//!
//! Keys and values are rotated first ([`crate::gemm::rotation`]): some coordinates of keys are large in every token, and
//! make the scale coarse for all others. Queries are rotated likewise, which leaves scores as they are, and sums of values
//! are rotated back.

use crate::{
    attention::{
        kv_layout::{self, BLOCK_SIZE, CacheShape, MAX_HEAD_DIM, expect_len},
        span_types::{Block, KvFormat, PerToken, SPAN_BLOCKS, Scales, Span},
    },
    error::ArgumentError,
    gemm::{
        grouped::Widen,
        quantize::{GROUP, round_by_one_scale},
        rotation::rotate_head,
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        element::{Element, Packed},
    },
    memory::{aligned::Aligned, prefetch::prefetch},
};

/// Bytes of the scales of a head in a block.
const SCALES: usize = 2 * HALF_SCALES;

/// Bytes of the scales of keys or of values.
const HALF_SCALES: usize = BLOCK_SIZE * size_of::<f32>();

/// One layer's cache.
#[derive(Debug, Clone, Copy)]
pub enum KvView<'a, T> {
    /// Numbers of the model's dtype, laid out by [`crate::attention::kv_layout`].
    Numbers(&'a [T]),
    /// Codes and scales, laid out by this module.
    Int8(&'a [i8]),
}

/// A cache of numbers of the model's dtype.
pub struct Numbers;

/// A cache of eight-bit codes with scales.
pub struct Int8Kv;

impl KvFormat for Numbers {
    const IS_INT8: bool = false;

    #[inline(always)]
    fn bytes<P: Packed>(units: usize) -> usize {
        units * size_of::<P>()
    }
}

impl KvFormat for Int8Kv {
    const IS_INT8: bool = true;

    #[inline(always)]
    fn bytes<P: Packed>(units: usize) -> usize {
        units * P::DEPTH
    }
}

impl<T: Element> KvView<'_, T> {
    /// Checks the cache against its shape.
    pub(crate) fn check(&self, shape: CacheShape) -> Result<(), ArgumentError> {
        match self {
            Self::Numbers(cache) => {
                shape.check(cache.len())?;
                // Numbers are read as packed units.
                let (start, align) = (cache.as_ptr().addr(), align_of::<T::Packed>());
                let stride = shape.block_stride * size_of::<T>();
                if !stride.is_multiple_of(align) {
                    let expected = format_args!("blocks a multiple of {align} bytes apart");
                    return Err(ArgumentError::new("cache", expected, stride));
                }
                if cache.is_empty() || start.is_multiple_of(align) {
                    return Ok(());
                }
                let expected = format_args!("a start at a multiple of {align} bytes");
                let got = format_args!("one {} bytes after it", start % align);
                Err(ArgumentError::new("cache", expected, got))
            }
            Self::Int8(cache) => check_int8(shape, cache.len()),
        }
    }
}

/// Bytes of one head in one block.
#[must_use]
pub fn int8_head_len(head_dim: usize) -> usize {
    2 * BLOCK_SIZE * head_dim + SCALES
}

/// Checks the length of a cache in int8.
///
/// # Errors
/// If the head size is unsupported or the length of the cache is another.
pub fn check_int8(shape: CacheShape, cache_len: usize) -> Result<(), ArgumentError> {
    shape.check_head()?;
    expect_len(&shape, int8_head_len(shape.head_dim), cache_len)
}

/// One head of a token: numbers, and their codes.
#[derive(Default)]
pub(crate) struct Head {
    numbers: [[f32; GROUP]; MAX_HEAD_DIM.div_ceil(GROUP)],
    codes: [[i8; GROUP]; MAX_HEAD_DIM.div_ceil(GROUP)],
}

impl Head {
    /// Rotates a key or a value and rounds it to codes; gives their scale, which is NaN where a number is not finite.
    /// Those of one buffer are as long as each other.
    fn round<T: Element>(&mut self, numbers: &[T]) -> (&[i8], f32) {
        let scale = dispatch(RoundHead {
            head: self,
            numbers,
        });
        (&self.codes.as_flattened()[..numbers.len()], scale)
    }
}

/// Rotates a head and rounds it; gives the scale.
struct RoundHead<'a, T> {
    head: &'a mut Head,
    numbers: &'a [T],
}

impl<T: Element> Kernel for RoundHead<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn run<I: Isa>(self) -> f32 {
        let Self { head, numbers } = self;
        let rotated = &mut head.numbers.as_flattened_mut()[..numbers.len()];
        Widen {
            row: numbers,
            numbers: &mut *rotated,
        }
        .run::<I>();
        rotate_head::<I>(rotated);
        let num_groups = numbers.len().div_ceil(GROUP);
        round_by_one_scale::<I>(&head.numbers[..num_groups], &mut head.codes)
    }
}

/// How a token is written to the cache.
pub(crate) trait WriteToken<T>: KvFormat {
    /// What a head of a block consists of.
    type Unit: Copy + Send + Sync;

    /// Memory for one token, which begins as zeros.
    type Buffer: Default;

    /// Elements of one head in one block.
    fn head_len(shape: CacheShape) -> usize;

    /// Writes the key and value of one token to its place in one head of a block.
    fn pack(
        buffer: &mut Self::Buffer,
        head: &mut [Self::Unit],
        token: usize,
        key: &[T],
        value: &[T],
    );
}

impl<T: Element> WriteToken<T> for Numbers {
    type Unit = T;
    type Buffer = ();

    fn head_len(shape: CacheShape) -> usize {
        shape.head_len()
    }

    fn pack((): &mut (), head: &mut [T], token: usize, key: &[T], value: &[T]) {
        kv_layout::pack(head, token, key, value);
    }
}

impl<T: Element> WriteToken<T> for Int8Kv {
    type Unit = i8;
    type Buffer = Head;

    fn head_len(shape: CacheShape) -> usize {
        int8_head_len(shape.head_dim)
    }

    fn pack(buffer: &mut Head, head: &mut [i8], token: usize, key: &[T], value: &[T]) {
        let (codes, scales) = head.split_at_mut(head.len() - SCALES);
        let (keys, values) = codes.split_at_mut(codes.len() / 2);
        let (key_scales, value_scales) = scales.split_at_mut(HALF_SCALES);
        let (codes, scale) = buffer.round(key);
        kv_layout::put_key::<T, i8>(keys, token, codes);
        put_scale(key_scales, token, scale);
        let (codes, scale) = buffer.round(value);
        kv_layout::put_value::<T, i8>(values, token, codes);
        put_scale(value_scales, token, scale);
    }
}

fn put_scale(scales: &mut [i8], token: usize, scale: f32) {
    scales.as_chunks_mut::<4>().0[token] = scale.to_ne_bytes().map(u8::cast_signed);
}

/// Memory for a span of codes as numbers.
pub(crate) struct DequantizedSpan<P: Packed> {
    /// The keys of a block, then its values, block by block.
    units: Aligned<P>,
    keys: PerToken<f32>,
    values: PerToken<f32>,
}

impl<P: Packed> DequantizedSpan<P> {
    pub(crate) fn new(head_dim: usize) -> Self {
        let numbers = SPAN_BLOCKS * 2 * BLOCK_SIZE * head_dim;
        Self {
            units: Aligned::zeroed(numbers / P::DEPTH),
            keys: [[0.0; BLOCK_SIZE]; SPAN_BLOCKS],
            values: [[0.0; BLOCK_SIZE]; SPAN_BLOCKS],
        }
    }

    /// Widens four heads of a cache, which start at these places, and asks for those that come next; scales of
    /// keys get `factor`, that of the scores.
    #[inline(always)]
    pub(crate) fn span<I: Isa>(
        &mut self,
        cache: &[i8],
        heads: [usize; SPAN_BLOCKS],
        next: [usize; SPAN_BLOCKS],
        factor: f32,
    ) -> (Span<'_, P>, Scales<'_>) {
        let len = self.units.len() / SPAN_BLOCKS;
        let head_len = len * P::DEPTH + SCALES;
        for (block, units) in self.units.chunks_exact_mut(len).enumerate() {
            let head = &cache[heads[block]..][..head_len];
            let (codes, scales) = head.split_at(head_len - SCALES);
            P::widen::<I>(codes, units);
            let (keys, values) = scales.split_at(HALF_SCALES);
            get_scales(keys, &mut self.keys[block]);
            for scale in &mut self.keys[block] {
                *scale *= factor;
            }
            get_scales(values, &mut self.values[block]);
        }
        let units = &self.units;
        let span = std::array::from_fn(|block| {
            let (keys, values) = units[block * len..][..len].split_at(len / 2);
            let next_head = cache.as_ptr().wrapping_add(next[block]);
            // Tiles ask for codes, line by line; two lines of scales are behind them.
            for offset in [0, HALF_SCALES] {
                prefetch(next_head.wrapping_add(head_len - SCALES + offset));
            }
            let next_head = next_head.cast::<u8>();
            Block {
                keys,
                values,
                next_keys: next_head,
                next_values: next_head.wrapping_add((head_len - SCALES) / 2),
            }
        });
        let (keys, values) = (&self.keys, &self.values);
        (span, Scales { keys, values })
    }
}

#[inline(always)]
fn get_scales(bytes: &[i8], scales: &mut [f32; BLOCK_SIZE]) {
    for (scale, bytes) in scales.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *scale = f32::from_ne_bytes(bytes.map(i8::cast_unsigned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::span_types::SPAN;
    use crate::bf16;
    use crate::gemm::{operand::Operand, rotation::rotate};

    struct WidenSpan<'a, P: Packed>(&'a mut DequantizedSpan<P>, &'a [i8]);

    impl<P: Packed> Kernel for WidenSpan<'_, P> {
        type Output = ();

        const USES_BF16: bool = true;

        #[inline(always)]
        fn run<I: Isa>(self) {
            let len = self.1.len() / SPAN_BLOCKS;
            let heads = std::array::from_fn(|block| block * len);
            self.0.span::<I>(self.1, heads, heads, 1.0);
        }
    }

    fn a_span_is_what_was_packed<T: Element>()
    where
        T::Packed: Operand<T::Packed>,
    {
        let (head_dim, depth) = (32, <T::Packed as Packed>::DEPTH);
        let len = int8_head_len(head_dim);
        let mut cache = vec![0; SPAN_BLOCKS * len];
        let numbers = |token: usize| -> Vec<T> {
            let number = |d| ((token * 37 + d * 11) % 101) as f32 / 7.0 - 6.0;
            (0..head_dim).map(|d| T::from_f32(number(d))).collect()
        };
        let (key, value) = (numbers, |token| numbers(token + 1000));
        for token in 0..SPAN {
            let head = &mut cache[token / BLOCK_SIZE * len..][..len];
            Int8Kv::pack(
                &mut Head::default(),
                head,
                token % BLOCK_SIZE,
                &key(token),
                &value(token),
            );
        }
        let mut widened = DequantizedSpan::<T::Packed>::new(head_dim);
        dispatch(WidenSpan(&mut widened, &cache));
        let codes: Vec<f32> = (0..widened.units.len() * depth)
            .map(|place| widened.units[place / depth].number(place % depth))
            .collect();
        let codes: Vec<T> = codes.into_iter().map(T::from_f32).collect();
        for token in 0..SPAN {
            let (block, offset) = (token / BLOCK_SIZE, token % BLOCK_SIZE);
            let head = &codes[block * codes.len() / SPAN_BLOCKS..][..codes.len() / SPAN_BLOCKS];
            let mut unpacked = [vec![T::default(); head_dim], vec![T::default(); head_dim]];
            let [key_codes, value_codes] = &mut unpacked;
            kv_layout::unpack(head, offset, key_codes, value_codes);
            let scales = [widened.keys[block][offset], widened.values[block][offset]];
            for half in 0..2 {
                let expected = [key(token), value(token)];
                let mut expected: Vec<f32> = expected[half]
                    .iter()
                    .map(|number| number.to_f32())
                    .collect();
                rotate(&mut expected);
                for (code, number) in unpacked[half].iter().zip(expected) {
                    let code = code.to_f32();
                    assert_eq!(code, code.round(), "codes are whole");
                    let error = (code * scales[half] - number).abs();
                    assert!(error <= 0.51 * scales[half], "{code} for {number}");
                }
            }
        }
    }

    #[test]
    fn a_span_of_codes_is_what_was_packed() {
        a_span_is_what_was_packed::<f32>();
        a_span_is_what_was_packed::<bf16>();
    }

    #[test]
    fn a_number_that_is_not_finite_makes_the_scale_nan() {
        let mut head = vec![0; int8_head_len(16)];
        let mut key = [1.0; 16];
        key[3] = f32::INFINITY;
        Int8Kv::pack(&mut Head::default(), &mut head, 5, &key, &[0.0; 16]);
        let mut scales = [0.0; BLOCK_SIZE];
        get_scales(&head[head.len() - SCALES..][..HALF_SCALES], &mut scales);
        assert!(scales[5].is_nan());
        get_scales(&head[head.len() - HALF_SCALES..], &mut scales);
        assert_eq!(scales[5], 0.0, "values that are all zero");
    }
}
