//! The scheduler: one loop for every policy, prefill and decode alike.
//!
//! Each request has `num_computed_tokens` chasing `num_tokens`; a step spends `max_num_batched_tokens` on the
//! difference (vLLM v1; Sarathi-Serve's chunked prefill falls out of it). A decode is a request that lacks one token.
//!
//! ```text
//!             add                 admit (a free row, blocks for all tokens, the policy's gate)
//!   client ---------> waiting -----------------------------------------------> running ----> ended
//!                        ^                                                        |
//!                        +---- preempt: loses row and blocks, resumes before -----+
//!                              all fresh requests
//! ```
//!
//! A request that is paused or has no credit is suspended: it is in no step, and keeps row and blocks until another request
//! needs them ([`waiting`]).
//!
//! - Requests and blocks have one owner, this struct; `end` is the one way out and `release` the one place that frees.
//! - What a step in flight names is released when the last such step ends, and is not preempted before.
//! - With two steps in flight the next step is planned while one runs: a request whose token is not known yet goes on
//!   from the runner's last sampled token. If that token ends the answer, what follows it is dropped.
//! - There is no clock, randomness, thread, lock or I/O here: the same calls give the same plans.

mod add;
mod admit;
mod budget;
mod change;
mod check;
mod draft;
mod end;
mod explain;
mod fair_share;
mod load;
mod loading;
mod outcome;
mod preempt;
mod reserved_rows;
mod slots;
mod states;
mod step;
mod step_record;
mod waiting;
mod yielding;

use std::{collections::VecDeque, sync::Arc};

pub use self::{
    add::Added,
    budget::MIN_CHUNK,
    change::{Change, Schedule, Stopping},
    draft::{DraftCandidate, MAX_DRAFTS},
    explain::{Explanation, RequestState, WaitingList},
    load::Load,
    step::Next,
    step_record::{RowRecord, RowWork, StepRecord},
};
use self::{slots::Slots, step::StepBuilder, yielding::Claim};
pub use crate::ids::StepId;
use crate::{
    config::Config,
    cost_model::{CostModel, Work},
    error::{ConfigError, Violation},
    events::Events,
    ids::{Nanos, RequestId, Row, Slot, Snapshot},
    kv_cache::{BlockEvents, CellUse, KvCache},
    plan::Plan,
    queue::{Deadlines, Queue, WaitClock},
    request::Request,
    rows::Rows,
};
use chairlift_text::TokenTable;

/// What a step in flight computes for one request.
#[derive(Clone, Copy, Debug)]
struct Item {
    slot: Slot,
    row: Row,
    /// It computes its last sampled token, not a part of its prompt.
    is_decode: bool,
    /// Tokens without drafts.
    num_tokens: u32,
    /// Sample slots: none, one, or one more than drafts.
    num_samples: u32,
    /// Log probabilities of its prompt.
    num_scores: u32,
    /// `num_computed` of the request after the step, without its drafts.
    end: usize,
    /// Where its state is written.
    saved: Option<Snapshot>,
}

#[derive(Clone, Debug)]
struct Step {
    id: StepId,
    items: Vec<Item>,
    work: Work,
    planned_at: Nanos,
    preempted: Vec<RequestId>,
}

/// Owns requests, rows and KV blocks; decides which tokens each step computes.
#[derive(Clone)]
pub struct Scheduler {
    config: Config,
    max_context_len: usize,
    token_table: Arc<TokenTable>,
    slots: Slots,
    queue: Queue,
    /// Suspended requests without a row, and siblings that wait for their parent's admission.
    num_suspended: usize,
    num_with_parent: usize,
    num_waiting_tokens: usize,
    wait_clock: WaitClock,
    /// In order of admission: the youngest last.
    running: Vec<Slot>,
    /// Requests with proposed drafts that no step has taken.
    drafted: Vec<Slot>,
    /// A request on the running list no longer runs, or a row was held.
    needs_sweep: bool,
    rows: Rows,
    kv: KvCache,
    deadlines: Deadlines,
    /// Requests added before this may run in a partial batch.
    flushed_before: RequestId,
    in_flight: VecDeque<Step>,
    spare_items: Vec<Vec<Item>>,
    num_steps: u64,
    /// Since the last plan.
    preempted: Vec<RequestId>,
    last_step: StepRecord,
    /// How long steps take, and when the last ended.
    costs: CostModel,
    last_update: Nanos,
    events: Events,
    counters: Counters,
}

/// Counts since the start, as [`Load`] explains them.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    num_preemptions: u64,
    num_recomputed_tokens: u64,
    num_swapped_tokens: u64,
    num_prefix_queries: u64,
    num_prefix_hits: u64,
    num_prefix_hit_tokens: u64,
}

impl Scheduler {
    /// An idle scheduler.
    ///
    /// # Errors
    /// Names the first setting that is out of range.
    pub fn new(config: Config, token_table: Arc<TokenTable>) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            max_context_len: config.max_context_len(),
            token_table,
            slots: Slots::new(config.num_slots()),
            queue: Queue::default(),
            num_suspended: 0,
            num_with_parent: 0,
            num_waiting_tokens: 0,
            wait_clock: WaitClock::default(),
            running: Vec::with_capacity(config.max_num_seqs),
            drafted: Vec::new(),
            needs_sweep: false,
            rows: Rows::new(config.max_num_seqs),
            kv: KvCache::new(&config),
            deadlines: Deadlines::default(),
            flushed_before: RequestId(0),
            in_flight: VecDeque::with_capacity(config.steps_in_flight),
            spare_items: Vec::new(),
            num_steps: 0,
            preempted: Vec::new(),
            last_step: StepRecord::default(),
            costs: CostModel::default(),
            last_update: 0,
            events: Events::default(),
            counters: Counters::default(),
            config,
        })
    }

    /// The request in a slot that is listed somewhere.
    fn request(&self, slot: Slot) -> &Request {
        self.slots.listed(slot)
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Plans the next step into `plan`, which is cleared.
    ///
    /// Running requests go first, in order of admission: each decode has one token of the budget reserved, and prompts are
    /// cut into chunks that fit into the rest. If a request needs a block and none is free, another is preempted
    /// ([`preempt`]). If none was, waiting requests are admitted with what is left ([`admit`]). Prompts of
    /// tenants over their fair share are deferred until then ([`fair_share`]). What is left is for drafts
    /// ([`Scheduler::draft`]).
    ///
    /// ```text
    /// budget  [ A 1 | B 1 | C chunk of 120 | D 1 | E is admitted, chunk of 133 ]
    /// ```
    pub fn schedule(&mut self, now: Nanos, plan: &mut Plan) -> Next {
        plan.clear();
        self.wait_clock.advance(now);
        if self.in_flight.len() >= self.config.steps_in_flight {
            return Next::Idle { wake_at: None };
        }
        self.expire(now);
        let claim = Claim::enforce(self, now);
        let mut step = StepBuilder::new(self, now, plan, claim);
        step.schedule_running();
        let gate_opens = step.admit_waiting();
        step.schedule_deferred();
        step.schedule_drafts();
        step.launch(gate_opens)
    }

    /// Lets the requests that wait now run in a partial batch: no more input is to come.
    pub fn flush(&mut self) {
        self.flushed_before = self.slots.next_id();
    }

    /// Forgets up to `max` cached blocks that are not in use, the least recently used first, and returns how many.
    ///
    /// Answers do not depend on it; it gives way to pressure from outside.
    pub fn evict_cached(&mut self, max: usize) -> usize {
        self.kv.evict_cached(max)
    }

    /// Moves the events since the last call to `out`, which is cleared.
    pub fn take_events(&mut self, out: &mut Events) {
        out.clear();
        std::mem::swap(&mut self.events, out);
    }

    /// What the scheduler holds now, and counts since it started; O(running requests).
    pub fn load(&self) -> Load {
        Load::of(self)
    }

    /// What a request does and waits for; None if it has ended or never was. Takes time in the number of waiting requests.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        Explanation::of(self, request)
    }

    /// The waiting requests of a tenant, the first `max_explained` of them explained. Takes time in `max_explained`, in the
    /// number of preempted requests and of tenants that wait, and where requests are suspended in that of slots.
    pub fn waiting_of(&self, tenant: &str, max_explained: usize) -> WaitingList {
        WaitingList::of(self, tenant, max_explained)
    }

    /// How the KV blocks are used, cell by cell, as the tenant may see it. Takes time in the number of cells.
    pub fn block_map(&self, tenant: &str) -> Vec<CellUse> {
        self.kv.block_map(self.queue.shares.find(tenant))
    }

    /// Reports which blocks of some tenants can be found in the prefix cache, from now on: those of requests that are
    /// added later and have no salt. A place in the list is a stream of events.
    pub fn report_blocks(&mut self, tenants: Vec<String>) {
        self.kv.report_blocks(tenants);
    }

    /// Moves the events since the last call out: those of one step if it is called after each.
    pub fn take_block_events(&mut self) -> BlockEvents {
        self.kv.take_block_events()
    }

    /// All reported blocks as if they were stored now, each behind the one before it; O(blocks).
    pub fn block_snapshot(&self) -> BlockEvents {
        self.kv.block_snapshot()
    }

    /// Reports the blocks of an adapter that is unloaded as removed: no request finds them; O(blocks).
    pub fn remove_adapter(&mut self, slot: u32) {
        self.kv.remove_adapter(slot);
    }

    /// What the step did that ended last; in a step that failed no row has accepted drafts.
    pub fn last_step(&self) -> &StepRecord {
        &self.last_step
    }

    /// What the steps so far say about the next.
    pub fn costs(&self) -> &CostModel {
        &self.costs
    }

    /// The sequences that hold a row, in order of admission; O(running requests).
    pub fn running(&self) -> impl Iterator<Item = (Slot, Row)> + '_ {
        let row = |slot: Slot| self.request(slot).row().map(|row| (slot, row));
        self.running.iter().filter_map(move |&slot| row(slot))
    }

    /// The requests that use an adapter, those included that have ended but for a step in flight; O(slots).
    pub fn with_adapter(&self, slot: u32) -> Vec<RequestId> {
        let requests = self.slots.iter();
        let users = requests.filter(|request| request.adapter == slot);
        let mut ids: Vec<_> = users.map(|request| request.owner).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Checks that everything has one owner and that every count is true; O(blocks + requests).
    ///
    /// # Errors
    /// Describes the first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        check::check_invariants(self)
    }

    /// Forgets deadlines that no longer hold, if they are many.
    fn compact_deadlines(&mut self) {
        let num_live = self.num_waiting() + self.running.len();
        let slots = &self.slots;
        self.deadlines.compact(num_live, |time, id| {
            let slot = slots.first_sequence(id);
            let request = slot.and_then(|slot| slots.get(slot));
            request.is_some_and(|request| {
                let timing = &request.timing;
                [timing.queue_deadline, timing.deadline].contains(&Some(time))
            })
        });
    }
}
