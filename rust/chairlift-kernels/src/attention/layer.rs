//! One layer's cache and how to attend to it.

use crate::attention::{kv_format::KvView, kv_layout::CacheShape};

/// One layer's cache and how to attend to it.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLayer<'a, T> {
    /// Keys and values.
    pub cache: KvView<'a, T>,
    /// Shape of `cache`.
    pub shape: CacheShape,
    /// Operand of the scores; positive.
    pub scale: f32,
    /// A token sees itself and the `window - 1` before it.
    pub window: Option<usize>,
    /// A score `s` becomes `cap tanh(s / cap)`; positive.
    pub soft_cap: Option<f32>,
    /// `[num_heads]`: the score of one more token, whose value is zero.
    pub sinks: Option<&'a [f32]>,
}

impl<'a, T> AttentionLayer<'a, T> {
    /// Attention to all tokens, with nothing else done to the scores.
    #[must_use]
    pub fn new(cache: KvView<'a, T>, shape: CacheShape, scale: f32) -> Self {
        Self {
            cache,
            shape,
            scale,
            window: None,
            soft_cap: None,
            sinks: None,
        }
    }
}
