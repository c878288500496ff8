//! What the world knows of one request, from outside the scheduler.

use chairlift_core::{
    PATIENCE, PromptOptions, RequestId,
    cost_model::{CostModel, Work},
    events::EndReason,
};

use crate::{
    mirror::{Source, source},
    oracle::{Answer, root},
    workload::{Arrival, Label},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Running,
    Ended,
}

/// What the event at hand owes a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    pub(crate) num_tokens: usize,
    pub(crate) end: Option<EndReason>,
}

/// What a client's wait for its first step is made of, by the world's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    pub(crate) arrival: u64,
    pub(crate) start: Option<u64>,
    pub(crate) suspended_since: Option<u64>,
    pub(crate) suspended: u64,
}

impl Wait {
    pub(crate) fn new(arrival: u64, is_suspended: bool) -> Self {
        Self {
            arrival,
            suspended_since: is_suspended.then_some(arrival),
            ..Self::default()
        }
    }

    /// It may go on or not from now on.
    pub(crate) fn suspend(&mut self, now: u64, is_suspended: bool) {
        if self.start.is_some() {
            return;
        }
        self.suspended += self.suspended_since.take().map_or(0, |since| now - since);
        self.suspended_since = is_suspended.then_some(now);
    }

    /// Its first tokens are computed.
    pub(crate) fn start(&mut self, now: u64) {
        self.start.get_or_insert(now);
    }
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, named where it is read"
)]
pub(crate) struct Client {
    pub(crate) label: Label,
    /// Which answer of its request, and how many there are.
    pub(crate) index: usize,
    pub(crate) num_sequences: usize,
    /// It waits, with a row or without, for its parent to compute the prompt.
    pub(crate) waits_for_parent: bool,
    pub(crate) id: RequestId,
    pub(crate) arrival: u64,
    pub(crate) queue_deadline: Option<u64>,
    pub(crate) start_by: Option<u64>,
    pub(crate) deadline: Option<u64>,
    pub(crate) tenant: u8,
    pub(crate) root: u64,
    /// Whose blocks are told where it publishes; None: they are not.
    pub(crate) source: Option<Source>,
    pub(crate) reads_cache: bool,
    pub(crate) prompt_output: PromptOptions,
    /// Tokens of its prompt that were sent back.
    pub(crate) num_prompt_sent: usize,
    pub(crate) priority: i32,
    pub(crate) turn_delay: u64,
    /// Output tokens that it may have; `None` is no limit.
    pub(crate) credit: Option<u64>,
    /// It gets no more.
    pub(crate) credit_is_final: bool,
    pub(crate) is_paused: bool,
    pub(crate) answer: Answer,
    pub(crate) state: State,
    /// It was in the batch at some time.
    pub(crate) joined: bool,
    /// Tokens of it were scheduled at some time.
    pub(crate) started: bool,
    /// The step in which it came back after its last preemption.
    pub(crate) resumed_at: u64,
    /// The last step that names it, counted from 1.
    pub(crate) last_step: u64,
    /// Steps in flight that name it.
    pub(crate) in_flight: usize,
    pub(crate) num_preemptions: usize,
    /// Tokens that it had at its last preemption, and that came between the last two.
    pub(crate) num_at_preemption: Option<usize>,
    pub(crate) progress_before: Option<usize>,
    /// Tokens found in the cache when it first joined.
    pub(crate) num_cached: usize,
    /// Tokens whose blocks were loaded for it from a store.
    pub(crate) num_loaded: usize,
    /// Tokens whose KV a preemption or a failed step threw away, and how many were computed again.
    num_lost: usize,
    pub(crate) num_recomputed: usize,
    /// Tokens whose KV may be in host memory, and whether it has to be there.
    pub(crate) num_kept: usize,
    pub(crate) is_kept: bool,
    /// Came back from host memory, and no step that names it has ended since.
    pub(crate) swaps_in: bool,
    /// Tokens whose KV is written, or will be by the steps in flight.
    pub(crate) num_computed: usize,
    /// What it was told may follow, for its next step; or what that step, in flight, takes of it.
    pub(crate) drafts: Vec<i32>,
    /// Its last step had drafts: the next plan says where its row goes on.
    pub(crate) is_moved: bool,
    /// Its last step failed: the next plan says where its row begins again, behind what the prefix cache knows.
    pub(crate) is_rolled_back: bool,
    /// Output tokens that were sampled, or will be by the steps in flight.
    pub(crate) num_sampled: usize,
    /// Output tokens delivered.
    pub(crate) num_output: usize,
    pub(crate) text: String,
    pub(crate) due: Option<Due>,
    pub(crate) wait: Wait,
}

impl Client {
    /// Text of tokens that were delivered waits: it may become a stop string, or a character.
    pub(crate) fn holds_text(&self) -> bool {
        let is_live = self.state != State::Ended;
        is_live && self.answer.text_len(self.num_output) > self.text.len()
    }

    /// A request that was taken just now.
    pub(crate) fn new(
        arrival: &Arrival,
        index: usize,
        id: RequestId,
        now: u64,
        answer: Answer,
    ) -> Self {
        let after = |time: Option<u64>| time.map(|time| now.saturating_add(time));
        Self {
            label: arrival.label,
            index,
            num_sequences: arrival.num_sequences,
            waits_for_parent: index > 0,
            id,
            arrival: now,
            queue_deadline: after(arrival.queue_patience),
            start_by: None,
            deadline: after(arrival.patience),
            tenant: arrival.tenant,
            root: root(arrival.tenant, arrival.salt, arrival.adapter().generation),
            source: source(arrival),
            reads_cache: arrival.cache_read && !arrival.prompt_output.scores,
            prompt_output: arrival.prompt_output,
            num_prompt_sent: 0,
            priority: arrival.priority,
            turn_delay: arrival.turn_delay,
            credit: None,
            credit_is_final: false,
            is_paused: false,
            answer,
            state: State::Waiting,
            joined: false,
            started: false,
            resumed_at: 0,
            last_step: 0,
            in_flight: 0,
            num_preemptions: 0,
            num_at_preemption: None,
            progress_before: None,
            num_cached: 0,
            num_loaded: 0,
            num_lost: 0,
            num_recomputed: 0,
            num_kept: 0,
            is_kept: false,
            swaps_in: false,
            num_computed: 0,
            drafts: Vec::new(),
            is_moved: false,
            is_rolled_back: false,
            num_sampled: 0,
            num_output: 0,
            text: String::new(),
            due: None,
            wait: Wait::default(),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state != State::Ended
    }

    /// Preempted and not back yet, and not suspended.
    pub(crate) fn is_preempted(&self) -> bool {
        self.state == State::Waiting
            && self.joined
            && !self.is_suspended()
            && !self.waits_for_parent
    }

    /// Never in the batch, and not suspended.
    pub(crate) fn is_fresh(&self) -> bool {
        self.state == State::Waiting
            && !self.joined
            && !self.is_suspended()
            && !self.waits_for_parent
    }

    /// It may not go on: paused, or its credit is spent when the steps in flight have ended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_live() && (self.is_paused || self.credit_left(self.num_sampled) == 0)
    }

    /// Tokens that it may have beside so many.
    pub(crate) fn credit_left(&self, num_tokens: usize) -> usize {
        let left = |credit: u64| credit.saturating_sub(num_tokens as u64) as usize;
        self.credit.map_or(usize::MAX, left)
    }

    /// When it has to start: at the time that it names, and soon after it came.
    pub(crate) fn must_start(&self) -> i128 {
        let latest = i128::from(self.arrival) + i128::from(PATIENCE);
        let start_by = self.start_by.map_or(latest, |time| latest.min(time.into()));
        start_by + i128::from(self.turn_delay)
    }

    /// Both are preempted, or both new ones of a tenant.
    pub(crate) fn shares_line(&self, other: &Self) -> bool {
        self.joined == other.joined && (self.joined || self.tenant == other.tenant)
    }

    /// Says when the first token should be there, by the scheduler's prediction of its prompt.
    pub(crate) fn aim(&mut self, first_token_by: Option<u64>, costs: &CostModel) {
        let prefill = costs.predict(Work::of(0, self.answer.num_prompt)) as u64;
        let start_by = first_token_by.map(|time| time.saturating_sub(prefill));
        let times = [start_by, self.queue_deadline];
        self.start_by = times.into_iter().flatten().min();
    }

    /// Tokens that exist, or will after the steps in flight.
    pub(crate) fn num_tokens(&self) -> usize {
        self.answer.num_prompt + self.num_sampled
    }

    /// Tokens that the next step can compute. The last token that the limits allow is never computed.
    pub(crate) fn num_pending(&self) -> usize {
        if self.is_suspended() || self.waits_for_parent {
            return 0;
        }
        let max_tokens = self.answer.num_prompt + self.answer.limit - 1;
        self.num_tokens()
            .min(max_tokens)
            .saturating_sub(self.num_computed)
    }

    /// Holds a row for nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_suspended() && self.in_flight == 0 && !self.waits_for_parent
    }

    /// It ends with the event at hand.
    pub(crate) fn is_ending(&self) -> bool {
        self.due.as_ref().is_some_and(|due| due.end.is_some())
    }

    /// Output tokens that it has, or gets by the event at hand.
    pub(crate) fn num_due(&self) -> usize {
        self.num_output + self.due.as_ref().map_or(0, |due| due.num_tokens)
    }

    /// It is admitted, with the KV of `start` tokens found in the cache.
    pub(crate) fn join(&mut self, start: usize) {
        if self.joined {
            self.num_recomputed += self.num_lost.saturating_sub(start);
            self.num_lost = 0;
        } else {
            self.num_cached = start;
        }
        (self.state, self.joined, self.num_computed) = (State::Running, true, start);
    }

    /// Row and blocks are gone.
    pub(crate) fn preempt(&mut self) {
        self.state = State::Waiting;
        if self.waits_for_parent {
            return;
        }
        self.reset_computed();
        self.is_rolled_back = false;
        self.num_preemptions += 1;
        let num_tokens = self.answer.num_prompt + self.num_output;
        let before = self.num_at_preemption.replace(num_tokens);
        self.progress_before = before.map(|before| num_tokens - before);
    }

    /// The row stays, its blocks are gone: the step that named it has failed.
    pub(crate) fn roll_back(&mut self) {
        self.reset_computed();
        self.is_rolled_back = true;
    }

    /// A row that was rolled back begins again.
    pub(crate) fn restart(&mut self, start: usize) {
        self.is_rolled_back = false;
        self.num_recomputed += std::mem::take(&mut self.num_lost).saturating_sub(start);
        self.num_computed = start;
    }

    /// What was sampled in lost steps will be sampled again.
    fn reset_computed(&mut self) {
        self.leave_drafts();
        (self.is_moved, self.swaps_in) = (false, false);
        self.num_lost += self.num_computed;
        self.num_computed = 0;
        self.num_sampled = self.num_output;
        self.in_flight = 0;
    }

    /// Its drafts, if a step takes some, count as computed no more.
    pub(crate) fn leave_drafts(&mut self) -> Vec<i32> {
        let drafts = std::mem::take(&mut self.drafts);
        if self.in_flight > 0 {
            self.num_computed -= drafts.len();
        }
        drafts
    }

    /// What `count` more tokens bring.
    pub(crate) fn due_after(&self, count: usize) -> Due {
        let left = self.answer.num_output - self.num_output;
        let is_spent = self.credit_is_final && count >= self.credit_left(self.num_output);
        let end = match (count >= left, is_spent) {
            (true, _) => Some(self.answer.reason.clone()),
            (false, true) => Some(self.answer.reason_at(self.num_output + count)),
            (false, false) => None,
        };
        Due {
            num_tokens: count.min(left),
            end,
        }
    }

    /// Takes tokens and text as a reader of the answer does.
    pub(crate) fn take(&mut self, tokens: &[i32], text: &str) -> Result<(), String> {
        let label = self.label;
        let PromptOptions { echo, scores } = self.prompt_output;
        if self.index == 0 && (echo || scores) && self.num_prompt_sent < self.answer.num_prompt {
            return Err(format!("#{label} gets tokens before all of its prompt"));
        }
        let due = self
            .due
            .as_mut()
            .ok_or_else(|| format!("#{label} gets an event that nothing explains"))?;
        if tokens.len() > due.num_tokens {
            return Err(format!(
                "#{label} gets {} tokens, {} are due",
                tokens.len(),
                due.num_tokens
            ));
        }
        due.num_tokens -= tokens.len();
        let expected = &self.answer.output()[self.num_output..self.num_output + tokens.len()];
        if tokens != expected {
            return Err(format!(
                "#{label} gets tokens {tokens:?}, its answer goes on {expected:?}"
            ));
        }
        self.num_output += tokens.len();
        self.text.push_str(text);
        Ok(())
    }

    /// Checks the last event against what is due and what was delivered.
    pub(crate) fn end(&mut self, reason: &EndReason) -> Result<(), String> {
        let label = self.label;
        let due = self.due.as_mut().and_then(|due| due.end.take());
        if due.as_ref() != Some(reason) {
            return Err(format!("#{label} ends with {reason:?}, due is {due:?}"));
        }
        self.state = State::Ended;
        let expected = self.answer.text(self.num_output);
        // A failed answer may lack text that was held back.
        let is_failed = matches!(reason, EndReason::Failed(_));
        if self.text != expected && !(is_failed && expected.starts_with(&self.text)) {
            return Err(format!(
                "#{label} has the text {:?}, expected {expected:?}",
                self.text
            ));
        }
        Ok(())
    }
}
