//! What became of each request, and sums over the steps.

use chairlift_core::{Nanos, RefusalReason, RequestId, events::Failure};

use crate::gaps::Gaps;

/// A time that has not come.
pub const NEVER: Nanos = Nanos::MAX;

/// How far one request has come, in one cache line: each token of each request touches it.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Progress {
    pub first_token: Nanos,
    pub last_token: Nanos,
    /// When its answer was complete.
    pub ended: Nanos,
    pub num_output: usize,
    /// Tokens of its prompt that were found in the cache of its replica.
    pub num_cached: usize,
    /// In the scheduler that has it, or had it last.
    pub(crate) id: Option<RequestId>,
    /// How often it was sent to a replica, and to which the last time.
    pub num_sent: u32,
    pub replica: u16,
}

impl Progress {
    pub(crate) const NEW: Self = Self {
        first_token: NEVER,
        last_token: NEVER,
        ended: NEVER,
        num_output: 0,
        num_cached: 0,
        id: None,
        num_sent: 0,
        replica: 0,
    };
}

const _: () = assert!(size_of::<Progress>() == 64);

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    Refused(RefusalReason),
    Failed(Failure),
    /// Its replica was lost after its first token, or a second time.
    Lost,
}

/// The steps of one replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps {
    pub num_steps: u64,
    /// Rows that computed something, summed over the steps.
    pub num_rows: u64,
    /// Tokens computed.
    pub num_tokens: u64,
    /// Unwritten share of the allocated KV slots, summed over the steps.
    pub kv_waste: f64,
}

/// Prompts that prefill replicas computed for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Requests whose blocks all came.
    pub num_whole: u64,
    /// Requests of which blocks were missing, since they came too late or had no room.
    pub num_partial: u64,
    /// Requests that were computed where they are, since too many waited.
    pub num_local: u64,
    /// Tokens of prompts whose keys and values came.
    pub num_tokens: u64,
}

/// All that a run leaves.
#[derive(Clone, Debug)]
pub struct Outcomes {
    /// By request.
    pub progress: Vec<Progress>,
    pub gaps: Gaps,
    /// By replica.
    pub steps: Vec<Steps>,
    /// Request and reason.
    pub unanswered: Vec<(u32, Unanswered)>,
    pub transfers: Transfers,
    /// Requests that were sent again after a loss of their replica.
    pub num_resent: u64,
    /// Replicas that were lost.
    pub num_losses: u64,
    /// Time that each replica was there, summed.
    pub replica_time: u128,
    /// Replicas that were there at once, at most.
    pub max_replicas: usize,
}

impl Outcomes {
    pub(crate) fn new(num_requests: usize, num_replicas: usize) -> Self {
        Self {
            progress: vec![Progress::NEW; num_requests],
            gaps: Gaps::default(),
            steps: vec![Steps::default(); num_replicas],
            unanswered: Vec::new(),
            transfers: Transfers::default(),
            num_resent: 0,
            num_losses: 0,
            replica_time: 0,
            max_replicas: 0,
        }
    }

    /// A request got a token.
    pub(crate) fn token(&mut self, index: usize, now: Nanos) {
        let progress = &mut self.progress[index];
        progress.num_output += 1;
        if progress.first_token == NEVER {
            progress.first_token = now;
        } else {
            self.gaps.add(now - progress.last_token);
        }
        progress.last_token = now;
    }

    /// A request does not get what it would have got at `end`, since its replica was lost before.
    pub(crate) fn take_back(&mut self, index: usize, end: Nanos) {
        let progress = &mut self.progress[index];
        progress.ended = NEVER;
        if progress.first_token == end {
            (progress.first_token, progress.num_output) = (NEVER, 0);
        }
    }
}
