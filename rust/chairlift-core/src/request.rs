//! A request inside the scheduler: `num_computed_tokens` chasing `num_tokens`.

use crate::{
    events::{EndReason, RequestStats},
    ids::{Nanos, RequestId, Row, Slot, Tenant},
    kv_cache::{BlockTable, Inserted},
    new_request::NewRequest,
    prompt_output::PromptOutput,
    queue::{QueueKey, WaitTimes},
    speculation::{Acceptance, Lookup, Proposer},
};
use chairlift_text::{TextState, TokenTable, answer::Fields};

/// Output tokens that a new request has memory for: growth happens when it is added, not in a step.
pub(crate) const MAX_TOKENS_RESERVED: usize = 1024;

/// Whether a request without a row had one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It never had a row: it waits for its tenant's turn.
    Fresh,
    /// It gave its row up to another request: it waits before all that are fresh.
    Preempted,
}

/// Where a request is in its life. A step that fails changes nothing here: its requests keep their rows.
///
/// ```text
/// Waiting(Fresh) --admit--> Running <--admit-- Waiting(Preempted)
///                              |                      ^
///                              +-------preempt--------+
/// ```
///
/// `Suspended` takes the place of `Waiting` while the request may not go on; every state leads to `Ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the queue.
    Waiting(Origin),
    /// Without a row and outside the queue: it may not go on.
    Suspended(Origin),
    /// A sibling without a row: it is admitted with its parent.
    WithParent,
    /// Holds a row, suspended or not.
    Running { row: Row },
    /// Its last event is out; it keeps row and blocks until no step in flight names it.
    Ended { row: Option<Row> },
}

/// What the runner knows of a request that has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunnerView {
    /// Its next tokens follow those of the last step, and the plan has them.
    Current,
    /// Its next tokens follow those of the last step, and its row sampled the last of them: the plan need not have it.
    LastSampled,
    /// It goes on elsewhere than where its row's last step ended: the next plan says where.
    Moved,
    /// Its blocks come from host memory, with a step that has not ended.
    SwappingIn,
    /// Its last step has failed: the next one begins it again.
    Restarting,
}

/// Tokens that end an answer.
#[derive(Clone, Debug)]
pub(crate) struct StopTokens {
    /// Output tokens before `stop_token_ids` and stop strings count.
    pub(crate) min_tokens: usize,
    pub(crate) stop_token_ids: Box<[i32]>,
    /// End it whatever `min_tokens` says.
    pub(crate) end_ids: Box<[i32]>,
    /// Whether its text has what stopped it.
    pub(crate) include_stop: bool,
}

/// What may follow the tokens of a request.
#[derive(Clone, Debug)]
pub(crate) struct Drafting {
    /// Proposed, or in the one step in flight that names the request.
    pub(crate) drafts: Vec<i32>,
    /// Where they come from, and how often those of each proposer but the lookup are right.
    pub(crate) proposer: Proposer,
    pub(crate) acceptance: [Acceptance; 2],
    /// The index of the request's tokens, from its first output token on.
    pub(crate) lookup: Option<Box<Lookup>>,
}

/// When a request is to run; `priority` and `turn_delay` order it, as in [`NewRequest`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) queue_deadline: Option<Nanos>,
    /// When it has to start: its queue deadline, or so that its prompt is computed in time.
    pub(crate) start_by: Option<Nanos>,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) priority: i32,
    pub(crate) turn_delay: Nanos,
}

#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Request {
    // A decode step visits every running request, and waits for memory more than for anything else: what it touches lies
    // in front, up to the first fields of `text` and of `table`, in six cache lines of 64 bytes.
    /// Prompt, then output.
    pub(crate) tokens: Vec<i32>,
    /// Tokens whose keys and values are written, or will be by the steps in flight; drafts in flight count.
    pub(crate) num_computed: usize,
    /// Tokens that steps in flight sample: they will follow `tokens`, and only the runner knows them.
    pub(crate) num_unknown: usize,
    /// Steps in flight that name this request.
    pub(crate) in_flight: usize,
    pub(crate) state: State,
    pub(crate) runner_view: RunnerView,
    /// Tokens of it were in a step at some time.
    pub(crate) has_started: bool,
    pub(crate) cache_read: bool,
    pub(crate) cache_write: bool,
    pub(crate) is_paused: bool,
    /// Blocks of its prompt are loaded: it has no row until it is released.
    pub(crate) is_held: bool,
    /// Blocks that were filled from outside for it.
    pub(crate) inserted: Inserted,
    /// No more credit follows: the answer ends when it is spent.
    pub(crate) credit_is_final: bool,
    /// The sequence that computes the prompt for it, while it waits for that, with a row or without.
    pub(crate) parent: Option<Slot>,
    /// Sequences that wait for this one to compute the prompt.
    pub(crate) num_siblings: usize,
    /// Tokens, prompt and output, that its credit pays for; without a limit the largest number.
    pub(crate) credit_end: usize,
    /// Most tokens, prompt and output: `max_tokens` or the context.
    pub(crate) max_num_tokens: usize,
    pub(crate) num_prompt: usize,
    /// The request of which this is a sequence, and which one: of the first, the request has its id.
    pub(crate) owner: RequestId,
    pub(crate) index: u32,
    pub(crate) tenant: Tenant,
    /// What is left to send of its prompt; none once all is sent, or if it is not asked for.
    pub(crate) prompt: Option<Box<PromptOutput>>,
    pub(crate) drafting: Drafting,
    pub(crate) fields: Option<Box<Fields>>,
    pub(crate) stops: StopTokens,
    pub(crate) text: TextState,
    pub(crate) table: BlockTable,
    pub(crate) id: RequestId,
    /// Slot of its adapter; 0 is none.
    pub(crate) adapter: u32,
    pub(crate) stats: RequestStats,
    /// Computed tokens that a preemption or a failed step threw away and nothing has replaced yet.
    pub(crate) num_lost: usize,
    /// How often it gave its row up to another request: the next victim is another one, if there is one.
    pub(crate) times_preempted: u32,
    /// It yields its row to other tenants only when it has so many tokens: it went on since it lost one.
    pub(crate) yields_from: usize,
    pub(crate) timing: Timing,
    /// The totals when it began to wait where it waits; nothing once it has started.
    pub(crate) waits_before: WaitTimes,
}

impl Request {
    pub(crate) fn new(
        id: RequestId,
        arrival: Nanos,
        new: NewRequest,
        max_context_len: usize,
        table: BlockTable,
        tenant: Tenant,
    ) -> Self {
        let num_prompt = new.prompt.len();
        let limit = max_context_len.max(num_prompt + 1);
        let max_num_tokens = limit.min(num_prompt.saturating_add(new.max_tokens));
        let mut tokens = new.prompt;
        tokens.reserve_exact(
            max_num_tokens
                .saturating_sub(num_prompt)
                .min(MAX_TOKENS_RESERVED),
        );
        Self {
            id,
            state: State::Waiting(Origin::Fresh),
            tokens,
            num_prompt,
            num_computed: 0,
            num_unknown: 0,
            runner_view: RunnerView::Current,
            drafting: Drafting {
                drafts: Vec::new(),
                proposer: Proposer::Lookup,
                acceptance: [Acceptance::OF_PROPOSALS; 2],
                lookup: None,
            },
            num_lost: 0,
            times_preempted: 0,
            yields_from: 0,
            has_started: false,
            in_flight: 0,
            table,
            tenant,
            adapter: new.namespace.adapter.slot,
            owner: id,
            index: 0,
            parent: None,
            num_siblings: 0,
            is_paused: false,
            is_held: false,
            inserted: Inserted::default(),
            credit_is_final: false,
            prompt: PromptOutput::new(new.prompt_output, &new.text),
            credit_end: new
                .credit
                .map_or(usize::MAX, |credit| add_credit(num_prompt, credit)),
            stops: StopTokens {
                min_tokens: new.min_tokens,
                stop_token_ids: new.stop_token_ids.into(),
                end_ids: new.end_ids.into(),
                include_stop: new.text.include_stop,
            },
            text: TextState::new(new.text).keeping(new.kept_tokens),
            fields: new.fields,
            max_num_tokens,
            // Keys and values that are known give no log probabilities.
            cache_read: new.cache_read && !new.prompt_output.scores,
            cache_write: new.cache_write,
            timing: Timing {
                queue_deadline: new.queue_deadline,
                start_by: None,
                deadline: new.deadline,
                priority: new.priority,
                turn_delay: new.turn_delay,
            },
            waits_before: WaitTimes::default(),
            stats: RequestStats {
                prompt_tokens: num_prompt,
                arrival,
                ..RequestStats::default()
            },
        }
    }

    /// A copy that has memory for as many tokens and blocks, which a clone alone has not.
    pub(crate) fn with_its_room(&self) -> Self {
        let mut copy = self.clone();
        let room = self.tokens.capacity() - self.tokens.len();
        copy.tokens.reserve_exact(room);
        copy.table.reserve_as(&self.table);
        copy
    }

    /// Known tokens, and tokens that the steps in flight sample.
    pub(crate) fn num_tokens(&self) -> usize {
        self.tokens.len() + self.num_unknown
    }

    /// Tokens still to be computed before the next can be sampled; 1 is a decode. The last token that the limits allow
    /// is never computed: 0 once a step in flight samples it. 0 too while it is suspended.
    pub(crate) fn num_pending(&self) -> usize {
        if self.is_suspended() || self.parent.is_some() {
            return 0;
        }
        // Limits that were lowered may lie behind what steps in flight compute.
        let end = self.num_tokens().min(self.max_num_tokens - 1);
        end.saturating_sub(self.num_computed)
    }

    /// A step can compute more than one token of its prompt.
    pub(crate) fn is_in_prompt(&self) -> bool {
        self.num_computed < self.num_prompt && self.num_pending() > 1
    }

    /// It lacks one token, which a step always has room for.
    pub(crate) fn is_decode(&self) -> bool {
        self.num_pending() == 1 && !self.restarts()
    }

    /// Its last step has failed: it keeps its row, and its next step begins it again.
    pub(crate) fn restarts(&self) -> bool {
        self.runner_view == RunnerView::Restarting
    }

    /// A step of it has ended: its blocks are here.
    pub(crate) fn has_swapped_in(&mut self) {
        if self.runner_view == RunnerView::SwappingIn {
            self.runner_view = RunnerView::Current;
        }
    }

    /// It may not go on: paused, held, or its credit is spent when the steps in flight have ended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_held || self.is_paused || self.num_tokens() >= self.credit_end
    }

    /// Holds its row for nothing: suspended, and no step in flight names it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_running() && self.in_flight == 0 && self.is_suspended() && self.parent.is_none()
    }

    /// It may yield to another tenant: it went on since it lost its row, if it did.
    pub(crate) fn has_progress(&self) -> bool {
        self.tokens.len() >= self.yields_from
    }

    /// Rows that it takes: its own, and those of its siblings while they wait for it.
    pub(crate) fn num_rows(&self) -> usize {
        1 + self.num_siblings
    }

    /// Orders it in the queue.
    pub(crate) fn queue_key(&self) -> QueueKey {
        let timing = &self.timing;
        let later = |time: Nanos| time.saturating_add(timing.turn_delay);
        let start_by = timing.start_by.map(later);
        QueueKey::new(
            later(self.stats.arrival),
            start_by,
            timing.priority,
            self.id,
        )
    }

    /// Takes a sampled token; its decided text goes to `out`. Some: the answer ends with it.
    pub(crate) fn push(
        &mut self,
        token: i32,
        table: &TokenTable,
        out: &mut String,
    ) -> Option<EndReason> {
        self.tokens.push(token);
        let may_stop = self.num_output() >= self.stops.min_tokens;
        let is_end = || self.stops.end_ids.contains(&token);
        if may_stop && self.stops.stop_token_ids.contains(&token) || is_end() {
            if self.stops.include_stop {
                self.text.push(table, token, false, out);
            }
            return Some(EndReason::StopToken(token));
        }
        if let Some(stop) = self.text.push(table, token, may_stop, out) {
            return Some(EndReason::StopString(self.text.stop(stop).to_owned()));
        }
        self.limit_reached()
    }

    /// Some: the answer may have no more tokens, now or later. One that is not paid for at all has not been begun.
    pub(crate) fn limit_reached(&self) -> Option<EndReason> {
        let num_tokens = self.tokens.len();
        if num_tokens >= self.max_num_tokens {
            return Some(EndReason::Length);
        }
        let is_spent = self.credit_is_final && num_tokens >= self.credit_end;
        is_spent.then(|| match self.num_output() {
            0 => EndReason::Cancelled,
            _ => EndReason::Length,
        })
    }

    /// Row or blocks are gone, with what it has computed and what was guessed after it.
    pub(crate) fn reset_computed(&mut self) {
        self.num_lost += self.num_computed;
        self.num_computed = 0;
        self.runner_view = RunnerView::Current;
        self.drafting.drafts.clear();
        if let Some(prompt) = &mut self.prompt {
            prompt.roll_back();
        }
    }

    /// It goes on at `start`: of what it had lost, the tokens behind are computed again. Returns how many these are.
    pub(crate) fn count_recomputed(&mut self, start: usize) -> u64 {
        let recomputed = std::mem::take(&mut self.num_lost).saturating_sub(start);
        self.stats.num_recomputed_tokens += recomputed;
        recomputed as u64
    }

    /// Request and index, as its events have them.
    pub(crate) fn event_key(&self) -> (RequestId, u32) {
        (self.owner, self.index)
    }

    /// Output tokens that its credit still pays for; none where there is no limit.
    pub(crate) fn unspent_credit(&self) -> u64 {
        let left = self.credit_end.saturating_sub(self.tokens.len()) as u64;
        if self.credit_end == usize::MAX {
            0
        } else {
            left
        }
    }

    pub(crate) fn num_output(&self) -> usize {
        self.tokens.len() - self.num_prompt
    }

    /// It has a row.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.state, State::Ended { .. })
    }

    /// It gave its row up and waits, in the queue or outside.
    pub(crate) fn is_preempted(&self) -> bool {
        self.origin() == Some(Origin::Preempted)
    }

    /// Where it comes from while it waits, in the queue or outside.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self.state {
            State::Waiting(origin) | State::Suspended(origin) => Some(origin),
            State::WithParent | State::Running { .. } | State::Ended { .. } => None,
        }
    }

    pub(crate) fn row(&self) -> Option<Row> {
        match self.state {
            State::Waiting(_) | State::Suspended(_) | State::WithParent => None,
            State::Running { row } => Some(row),
            State::Ended { row } => row,
        }
    }
}

/// A limit of tokens with more credit; it saturates, so that no credit is ever lost by being too much.
pub(crate) fn add_credit(credit_end: usize, credit: u64) -> usize {
    credit_end.saturating_add(usize::try_from(credit).unwrap_or(usize::MAX))
}
