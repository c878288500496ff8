//! Writes new keys and values to the cache.

use crate::{
    Element,
    attention::{
        kv_format::{Int8Kv, Numbers, WriteToken, check_int8},
        kv_layout::{BLOCK_SIZE, CacheShape},
    },
    error::{ArgumentError, expect_equal},
    memory::{disjoint::Disjoint, pool, rows::Rows},
};

/// Numbers that are worth the cache line which each pair of a key has to itself.
const ELEMENTS_PER_LINE: usize = 8;

/// Writes a key and a value per token and head to the token's slot.
///
/// Threads share the heads and not the tokens: a head of a block is a run of cache lines of its own.
///
/// Shapes: `key`, `value` `[T, num_kv_heads * head_dim]`; `slot_mapping` `[T]`, a slot is
/// `block * 16 + offset`.
///
/// # Errors
/// If the arguments do not fit each other, or a slot is outside the cache.
pub fn kv_write<T: Element>(
    key: Rows<'_, T>,
    value: Rows<'_, T>,
    cache: &mut [T],
    shape: CacheShape,
    slot_mapping: &[i32],
) -> Result<(), ArgumentError> {
    shape.check(cache.len())?;
    write::<T, Numbers>(key, value, cache, shape, slot_mapping)
}

/// Writes keys and values like [`kv_write`], to an int8 cache ([`crate::attention::kv_format`]) laid out for `T`.
///
/// # Errors
/// The errors of [`kv_write`].
pub fn kv_write_int8<T: Element>(
    key: Rows<'_, T>,
    value: Rows<'_, T>,
    cache: &mut [i8],
    shape: CacheShape,
    slot_mapping: &[i32],
) -> Result<(), ArgumentError> {
    check_int8(shape, cache.len())?;
    write::<T, Int8Kv>(key, value, cache, shape, slot_mapping)
}

/// Puts each token to its place in each head, as K does.
fn write<T: Element, K: WriteToken<T>>(
    key: Rows<'_, T>,
    value: Rows<'_, T>,
    cache: &mut [K::Unit],
    shape: CacheShape,
    slot_mapping: &[i32],
) -> Result<(), ArgumentError> {
    let (head_dim, head_len) = (shape.head_dim, K::head_len(shape));
    let width = shape.num_kv_heads * head_dim;
    expect_equal("key", "a width of", width, key.width())?;
    expect_equal("value", "a width of", width, value.width())?;
    expect_equal("value", "as many tokens as key:", key.len(), value.len())?;
    expect_equal(
        "slot_mapping",
        "one slot per token:",
        key.len(),
        slot_mapping.len(),
    )?;
    let num_slots = shape.num_blocks.saturating_mul(BLOCK_SIZE);
    if let Some(slot) = slot_mapping
        .iter()
        .find(|&&slot| usize::try_from(slot).map_or(true, |slot| slot >= num_slots))
    {
        let expected = format_args!("slots in 0..{num_slots}");
        return Err(ArgumentError::new("slot_mapping", expected, slot));
    }
    let cache = Disjoint::new(cache);
    let grain = pool::grain(key.len() * head_dim * ELEMENTS_PER_LINE);
    pool::split(shape.num_kv_heads, grain, |heads| {
        let mut buffer = K::Buffer::default();
        for (token, &slot) in slot_mapping.iter().enumerate() {
            let (block, offset) = (slot as usize / BLOCK_SIZE, slot as usize % BLOCK_SIZE);
            let (key, value) = (key.row(token), value.row(token));
            for head in heads.clone() {
                let start = shape.head_start(block, head, head_len);
                // SAFETY: no other part has this head, and one `take` at a time is alive here.
                let place = unsafe { cache.take(start..start + head_len) };
                let numbers = head * head_dim..(head + 1) * head_dim;
                let (key, value) = (&key[numbers.clone()], &value[numbers]);
                K::pack(&mut buffer, place, offset, key, value);
            }
        }
    });
    Ok(())
}
