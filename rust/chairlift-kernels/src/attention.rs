//! Attention over the paged KV cache, and the cache itself.
//!
//! [`paged_attention`] checks a batch; [`work_items`] cuts it into equal shares; [`attend`] runs one share, span by
//! span ([`span`]), by the online softmax of [`softmax`]. [`kv_layout`] says how a block lies in memory, [`kv_format`]
//! which numbers it holds, and [`kv_write`] writes them. [`full`] is the attention of encoders, which have no cache.

pub mod attend;
pub mod full;
pub mod kv_format;
pub mod kv_layout;
pub mod kv_write;
pub mod layer;
pub mod paged_attention;
pub mod softmax;
pub mod span;
pub mod span_types;
pub mod work_items;
