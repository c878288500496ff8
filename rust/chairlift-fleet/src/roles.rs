//! Prompts that other replicas compute, by the rules of `serve --role decode`.
//!
//! ```text
//! decode replica    a new request lacks many tokens --> held --> the prefill replica with the fewest of its calls
//! prefill replica   computes the prompt; behind each step its blocks go over one link, after one another
//! decode replica    places blocks as they come; all, or too late --> the request goes on, and computes what is missing
//! ```

use chairlift_core::Nanos;
use chairlift_router::random::Random;

/// Fewer missing tokens are computed by the decode replica: they cost a step or two.
pub const MIN_TOKENS: usize = 256;
/// And so is what it is predicted to compute in less: a call takes about as long.
pub const MIN_SAVED: Nanos = 20_000_000;
/// Prompts of one decode replica that others compute at once; it computes further ones.
pub const MAX_LIVE: usize = 32;

/// A transfer may take so many times as long as computing is predicted to take: the other replica may have other
/// prompts before this one, and computing it here would stall those that decode.
const SLOWER: Nanos = 4;
const MIN_LIMIT: Nanos = 1_000_000_000;
const UNKNOWN_LIMIT: Nanos = 30_000_000_000;
const MAX_LIMIT: Nanos = 300_000_000_000;

/// Replicas that compute prompts for the others.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// The first replicas; the router chooses among the others.
    pub num_prefill: usize,
    /// How long the keys and values of a token occupy the link of a prefill replica.
    pub transfer_s: f64,
}

/// How long a transfer may take.
///
/// `predicted` is how long computing here would take, if a step was measured yet; half of what the request may wait is left for it.
#[must_use]
pub fn limit(predicted: Option<Nanos>, queue_timeout: Option<Nanos>) -> Nanos {
    let limit = predicted.map_or(UNKNOWN_LIMIT, |predicted| predicted.saturating_mul(SLOWER));
    let limit = limit.clamp(MIN_LIMIT, MAX_LIMIT);
    queue_timeout.map_or(limit, |timeout| limit.min(timeout / 2))
}

/// Blocks of a request's prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Missing {
    pub(crate) index: u32,
    /// The block index of the first.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// What a replica tells others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// A decode replica wants blocks, for so long.
    Wanted { missing: Missing, limit: Nanos },
    /// All blocks before a block index are there.
    Computed { index: u32, end: usize },
    /// A prefill replica has no more of a request.
    Over { index: u32 },
}

/// The calls of decode replicas to prefill replicas.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    /// By request: the decode and the prefill replica.
    live: Vec<Option<(u16, u16)>>,
    /// By decode and prefill replica: a decode replica knows its calls alone.
    counts: Vec<Vec<u32>>,
}

impl Calls {
    pub(crate) fn new(roles: Roles, num_replicas: usize, num_requests: usize) -> Self {
        Self {
            live: vec![None; num_requests],
            counts: vec![vec![0; roles.num_prefill]; num_replicas],
        }
    }

    /// Begins a call; returns the prefill replica with the fewest calls of this decode replica, one of several at random.
    pub(crate) fn begin(&mut self, index: u32, decode: u16, random: &mut Random) -> u16 {
        let counts = &mut self.counts[decode as usize];
        let first = random.below(counts.len());
        let order = (0..counts.len()).map(|place| (place + first) % counts.len());
        let prefill = order.min_by_key(|&prefill| counts[prefill]);
        let prefill = prefill.expect("invariant: there are prefill replicas");
        counts[prefill] += 1;
        self.live[index as usize] = Some((decode, prefill as u16));
        prefill as u16
    }

    /// The decode replica of a request whose call goes on.
    pub(crate) fn decode_of(&self, index: u32) -> Option<u16> {
        self.live[index as usize].map(|(decode, _)| decode)
    }

    /// Ends a call, if it goes on; returns its decode and its prefill replica.
    pub(crate) fn end(&mut self, index: u32) -> Option<(u16, u16)> {
        let (decode, prefill) = self.live[index as usize].take()?;
        self.counts[decode as usize][prefill as usize] -= 1;
        Some((decode, prefill))
    }
}
