//! What `Scheduler.add` takes, read from the fields of `chairlift.core.new_request.NewRequest`.

use std::sync::Arc;

use chairlift_core::{Adapter, Namespace, PromptOptions};
use chairlift_text::TextOptions;
use pyo3::prelude::*;

use crate::{answer::AnswerParser, text::StopRegex};

#[derive(FromPyObject)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the fields of the Python class"
)]
pub(crate) struct NewRequest<'py> {
    prompt: Vec<i32>,
    max_tokens: usize,
    num_sequences: usize,
    min_tokens: usize,
    stop: Vec<String>,
    stop_token_ids: Vec<i32>,
    stop_regex: Option<PyRef<'py, StopRegex>>,
    include_stop: bool,
    end_ids: Vec<i32>,
    detokenize: bool,
    skip_special_tokens: bool,
    parser: Option<PyRef<'py, AnswerParser>>,
    tenant: String,
    salt: String,
    adapter: (u32, u64),
    cache_read: bool,
    cache_write: bool,
    echo: bool,
    prompt_logprobs: bool,
    queue_deadline: Option<u64>,
    first_token_by: Option<u64>,
    deadline: Option<u64>,
    credit: Option<u64>,
    priority: i32,
    turn_delay: u64,
}

impl From<NewRequest<'_>> for chairlift_core::NewRequest {
    fn from(new: NewRequest<'_>) -> Self {
        let (slot, generation) = new.adapter;
        let parser = new.parser.as_ref();
        Self {
            prompt: new.prompt,
            num_sequences: new.num_sequences,
            max_tokens: new.max_tokens,
            min_tokens: new.min_tokens,
            stop_token_ids: new.stop_token_ids,
            end_ids: new.end_ids,
            text: TextOptions {
                detokenize: new.detokenize,
                skip_special_tokens: new.skip_special_tokens,
                stop: new.stop,
                stop_regex: new.stop_regex.map(|regex| Arc::clone(&regex.inner)),
                include_stop: new.include_stop,
            },
            fields: parser.map(|parser| parser.fields()),
            kept_tokens: parser.map_or_else(|| Arc::new([]) as Arc<[i32]>, |p| p.kept_tokens()),
            namespace: Namespace {
                tenant: new.tenant,
                salt: new.salt,
                adapter: Adapter { slot, generation },
            },
            cache_read: new.cache_read,
            cache_write: new.cache_write,
            prompt_output: PromptOptions {
                echo: new.echo,
                scores: new.prompt_logprobs,
            },
            queue_deadline: new.queue_deadline,
            first_token_by: new.first_token_by,
            deadline: new.deadline,
            credit: new.credit,
            priority: new.priority,
            turn_delay: new.turn_delay,
        }
    }
}
