//! The requests of a trace, and their synthetic tokens: equal where the names of blocks are equal.

use std::{collections::HashSet, ops::Range};

use chairlift_core::Nanos;
use chairlift_router::random::mix;

/// Token ids are below it: as many as an i32 has, so that synthetic ones do not collide by chance.
pub const VOCAB_SIZE: u64 = (1 << 31) - 1;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The router looks at names of at least so many tokens: what it misses by that is little beside a prompt that is worth
/// to be found.
const ROUTER_TOKENS: usize = 128;

/// One request of a trace.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub arrival: Nanos,
    pub num_prompt: usize,
    /// Tokens of its answer.
    pub num_output: usize,
    /// The names of its first blocks, those of the answer included, in [`Work::names`].
    pub names: Range<usize>,
    pub tenant: u64,
    /// After the arrival.
    pub queue_timeout: Option<Nanos>,
    pub time_to_first_token: Option<Nanos>,
    pub time_limit: Option<Nanos>,
    pub priority: i32,
    pub cache_read: bool,
    pub cache_write: bool,
    pub cancelled: Option<Nanos>,
}

/// A trace.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// In order of arrival.
    pub requests: Vec<Request>,
    pub names: Vec<u64>,
    /// Tokens that a name stands for; a multiple of the size of a block, or its size.
    pub tokens_per_name: usize,
    /// When the input ended, so that partial batches may run.
    pub flushes: Vec<Nanos>,
}

impl Work {
    /// The token of a request at a position of its prompt and answer; outside of named blocks it is the request's number.
    pub fn token(&self, index: usize, position: usize) -> i32 {
        if self.names.is_empty() {
            return index as i32;
        }
        let place = self.requests[index].names.start + position / self.tokens_per_name;
        if place < self.requests[index].names.end {
            self.named_token(place, position % self.tokens_per_name)
        } else {
            index as i32
        }
    }

    fn named_token(&self, place: usize, offset: usize) -> i32 {
        let counter = GOLDEN.wrapping_mul(offset as u64 + 1);
        (mix(self.names[place].wrapping_add(counter)) % VOCAB_SIZE) as i32
    }

    /// The tokens of a prompt.
    pub fn prompt(&self, index: usize) -> Vec<i32> {
        let request = &self.requests[index];
        let mut tokens = Vec::with_capacity(request.num_prompt);
        'names: for place in request.names.clone() {
            for offset in 0..self.tokens_per_name {
                if tokens.len() == request.num_prompt {
                    break 'names;
                }
                tokens.push(self.named_token(place, offset));
            }
        }
        tokens.resize(request.num_prompt, index as i32);
        tokens
    }

    /// The names of a prompt, without those of blocks that are all answer.
    fn prompt_names(&self, index: usize) -> &[u64] {
        let request = &self.requests[index];
        let count = request.num_prompt.div_ceil(self.tokens_per_name);
        let names = &self.names[request.names.clone()];
        &names[..names.len().min(count)]
    }

    /// Tokens that a name of the router stands for.
    pub(crate) fn router_tokens(&self) -> usize {
        self.tokens_per_name * self.router_stride()
    }

    fn router_stride(&self) -> usize {
        ROUTER_TOKENS.div_ceil(self.tokens_per_name)
    }

    /// Puts the names that a router looks at into `names`, which is cleared: a name has all before it in it, so that every
    /// so many suffice.
    pub(crate) fn router_names(&self, index: usize, names: &mut Vec<u64>) {
        let stride = self.router_stride();
        names.clear();
        names.extend(
            self.prompt_names(index)
                .iter()
                .skip(stride - 1)
                .step_by(stride),
        );
    }

    /// Names of a prompt that can be found: the last token is computed always, and a block is found whole.
    pub fn num_findable(&self, index: usize, block_size: usize) -> usize {
        self.findable_tokens(index, block_size)
            .div_ceil(self.tokens_per_name)
    }

    /// Names of a prompt that were found, if so many of its tokens were.
    pub fn num_found(&self, index: usize, num_cached: usize, block_size: usize) -> usize {
        if num_cached >= self.findable_tokens(index, block_size) {
            self.num_findable(index, block_size)
        } else {
            num_cached / self.tokens_per_name
        }
    }

    fn findable_tokens(&self, index: usize, block_size: usize) -> usize {
        let num_prompt = self.requests[index].num_prompt;
        num_prompt.saturating_sub(1) / block_size * block_size
    }

    /// Names that one cache without bounds finds, over all requests that may read it.
    pub fn ceiling(&self, block_size: usize) -> usize {
        let mut seen: HashSet<(u64, u64), foldhash::fast::FixedState> = HashSet::default();
        let mut found = 0;
        for (index, request) in self.requests.iter().enumerate() {
            let tenant = request.tenant;
            if request.cache_read {
                let names = self.prompt_names(index).iter();
                let known = names.take_while(|&&name| seen.contains(&(tenant, name)));
                let num_cached = known.count() * self.tokens_per_name;
                found += self.num_found(index, num_cached, block_size);
            }
            if request.cache_write {
                let names = &self.names[request.names.clone()];
                seen.extend(names.iter().map(|&name| (tenant, name)));
            }
        }
        found
    }
}
