//! What a client asks for, as the scheduler takes it.

use std::sync::Arc;

use crate::{ids::Nanos, kv_cache::Namespace, prompt_output::PromptOptions};
use chairlift_text::{TextOptions, answer::Fields};

/// What `Scheduler::add` takes.
#[derive(Clone, Debug)]
pub struct NewRequest {
    pub prompt: Vec<i32>,
    /// Sequences, each with a row of its own and numbered from 0.
    pub num_sequences: usize,
    /// Output tokens of a sequence, at most what the context leaves.
    pub max_tokens: usize,
    /// No stop is looked for before this many output tokens.
    pub min_tokens: usize,
    /// End the answer; their text is left out unless `include_stop`.
    pub stop_token_ids: Vec<i32>,
    /// End the answer too, whatever `min_tokens` says and [`crate::scheduler::Change`] does: for a sequence that
    /// cannot go on behind them.
    pub end_ids: Vec<i32>,
    pub text: TextOptions,
    /// Finds reasoning and function calls in the text; none leaves it as it is.
    pub fields: Option<Box<Fields>>,
    /// Special tokens that are text all the same: the marks of fields.
    pub kept_tokens: Arc<[i32]>,
    pub namespace: Namespace,
    pub cache_read: bool,
    pub cache_write: bool,
    /// Its prompt is sent back, once for all sequences.
    pub prompt_output: PromptOptions,
    /// Fails when it has not started by then.
    pub queue_deadline: Option<Nanos>,
    /// Should have its first token by then; it only orders.
    pub first_token_by: Option<Nanos>,
    /// Ends with what there is by then.
    pub deadline: Option<Nanos>,
    /// Output tokens, over all sequences, that it may produce before more is given; None is no limit.
    pub credit: Option<u64>,
    /// Higher is admitted first; see [`crate::PRIORITY_LEVEL`].
    pub priority: i32,
    /// Stands in the queue as if it had arrived so much later: one of many of a caller, which takes turns with others.
    pub turn_delay: Nanos,
}

impl NewRequest {
    /// A request with every option at its default.
    pub fn new(prompt: Vec<i32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            num_sequences: 1,
            max_tokens,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            end_ids: Vec::new(),
            text: TextOptions::without_text(),
            fields: None,
            kept_tokens: Arc::new([]),
            namespace: Namespace::default(),
            cache_read: true,
            cache_write: true,
            prompt_output: PromptOptions::default(),
            queue_deadline: None,
            first_token_by: None,
            deadline: None,
            credit: None,
            priority: 0,
            turn_delay: 0,
        }
    }
}
