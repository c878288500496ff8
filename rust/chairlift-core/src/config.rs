//! The scheduler's settings, checked once.

use crate::{
    error::{ConfigError, check_max, check_min},
    ids::Nanos,
    policy::Policy,
};

/// A set of layers that share block tables: all the layers with the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Tokens that a token of these layers sees, itself included; `None` sees all.
    pub window: Option<u32>,
}

impl KvGroup {
    /// Blocks of the block table before this one hold nothing that the token at `position` sees, or a later one.
    pub fn first_index(self, position: usize, block_size: usize) -> usize {
        self.window.map_or(0, |window| {
            (position + 1).saturating_sub(window as usize) / block_size
        })
    }
}

/// Sequences of one request at most, however many rows there are.
const MAX_SEQUENCES: usize = 128;

/// Settings of a [`crate::Scheduler`].
#[derive(Clone, Debug)]
pub struct Config {
    pub policy: Policy,
    /// Rows of the batch.
    pub max_num_seqs: usize,
    /// Token budget of a step. At least `max_num_seqs`, so that every running request decodes in every step.
    pub max_num_batched_tokens: usize,
    /// How long a step may take by the cost model; prompts are cut into chunks that fit. None: tokens alone limit it.
    pub step_budget: Option<Nanos>,
    /// Longest prompt plus answer that the model takes.
    pub max_model_len: usize,
    /// Cap of the waiting queue; each sequence of a request counts.
    pub max_queued_requests: usize,
    /// Width of the logits: every token id is below it.
    pub vocab_size: usize,
    pub block_size: usize,
    /// Blocks of the pool, the null block included.
    pub num_blocks: usize,
    /// Blocks of the host's pool, where preempted sequences may keep theirs; with 0 they compute all tokens again.
    pub num_host_blocks: usize,
    /// How long it takes to copy a block there, or back.
    pub swap_block_time: Nanos,
    pub kv_groups: Vec<KvGroup>,
    /// Snapshots of recurrent states that there is memory for; None: the model has no recurrent state.
    pub state_snapshots: Option<usize>,
    /// Whether full blocks are shared between requests.
    pub prefix_cache: bool,
    /// Keys the prefix hashes; a secret of the process where tenants must not guess each other's prompts.
    pub hash_key: [u8; 32],
    /// Steps that may be planned but not yet updated: 1, or 2 to plan the next step while one runs.
    pub steps_in_flight: usize,
    /// Drafts of a step at most: the runner draws a token behind each, beside one for each row. 0 is none.
    pub max_step_drafts: usize,
    /// Whether sequences are searched for what followed their last tokens before.
    pub prompt_lookup: bool,
}

impl Config {
    /// Longest prompt plus answer that this scheduler can hold: the model's limit or the pool's.
    pub fn max_context_len(&self) -> usize {
        let mut max_blocks: Vec<_> = self
            .kv_groups
            .iter()
            .map(|&kv| self.max_blocks_of(kv))
            .collect();
        max_blocks.sort_unstable();
        // Groups that hold few blocks leave theirs to the others.
        let (mut blocks, mut num_indices) = (self.num_blocks - 1, usize::MAX);
        for (i, &max) in max_blocks.iter().enumerate() {
            let share = blocks / (self.kv_groups.len() - i);
            if share < max {
                num_indices = share;
                break;
            }
            blocks -= max;
        }
        self.max_model_len
            .min(num_indices.saturating_mul(self.block_size))
    }

    /// Blocks of a group that a request holds at a time, however long it is: what the first token of the steps in flight
    /// sees, and what they write.
    pub fn max_blocks_of(&self, group: KvGroup) -> usize {
        let Some(window) = group.window else {
            return usize::MAX;
        };
        let written = self.steps_in_flight * self.max_num_batched_tokens;
        // So many tokens in a row begin anywhere in a block.
        let tokens = written.saturating_add(window as usize - 1);
        (tokens.saturating_add(self.block_size) - 2) / self.block_size + 1
    }

    /// Sequences that a request may ask for: each takes a row, and counts in the queue before.
    pub fn max_sequences(&self) -> usize {
        MAX_SEQUENCES
            .min(self.max_num_seqs)
            .min(self.max_queued_requests)
    }

    /// Sequences that can exist at once: as many as may be queued, and one for each row. A preempted one may lengthen the
    /// queue beyond its cap, but leaves a row; one that has ended keeps its row while a step in flight names it.
    pub fn num_slots(&self) -> usize {
        self.max_queued_requests + self.max_num_seqs
    }

    /// Blocks of a row's block table.
    pub fn max_blocks_per_row(&self) -> usize {
        self.max_context_len().div_ceil(self.block_size)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let limit = i32::MAX as usize;
        check_min("max_num_seqs", self.max_num_seqs, 1, "")?;
        check_min(
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            self.max_num_seqs,
            "max_num_seqs, so that every running request gets its token in every step",
        )?;
        check_min("max_model_len", self.max_model_len, 2, "")?;
        check_min("max_queued_requests", self.max_queued_requests, 1, "")?;
        check_min("vocab_size", self.vocab_size, 1, "")?;
        check_min("block_size", self.block_size, 1, "")?;
        check_min("kv_groups", self.kv_groups.len(), 1, "")?;
        let windows = self.kv_groups.iter().filter_map(|group| group.window);
        for window in windows {
            check_min("window", window as usize, 1, "")?;
        }
        check_min(
            "num_blocks",
            self.num_blocks,
            1 + self.kv_groups.len(),
            "one block per KV group beside the null block",
        )?;
        check_max("max_num_seqs", self.max_num_seqs, 65_536)?;
        check_max("max_num_batched_tokens", self.max_num_batched_tokens, limit)?;
        check_max("max_queued_requests", self.max_queued_requests, limit / 4)?;
        check_max("vocab_size", self.vocab_size, limit)?;
        check_max("num_blocks", self.num_blocks, limit / self.block_size)?;
        check_max("num_host_blocks", self.num_host_blocks, limit)?;
        check_max("max_step_drafts", self.max_step_drafts, 65_536)?;
        if let Some(num_snapshots) = self.state_snapshots {
            check_max("state_snapshots", num_snapshots, limit)?;
            // A state has moved on behind drafts, and is not in host memory.
            check_max("max_step_drafts", self.max_step_drafts, 0)?;
            check_max("num_host_blocks", self.num_host_blocks, 0)?;
        }
        check_max("steps_in_flight", self.steps_in_flight, 2)?;
        check_min("steps_in_flight", self.steps_in_flight, 1, "")?;
        self.policy.validate(self.max_num_seqs)
    }
}
