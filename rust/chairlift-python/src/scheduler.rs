//! `Scheduler`: converts, releases the GIL, maps errors.

use std::sync::Arc;

use chairlift_core::{
    Config, KvGroup, RequestId,
    plan::Plan,
    policy::Policy,
    scheduler::{self, Change, Next, Schedule, StepId, Stopping},
};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{
    block_events::BlockEvents,
    drafts::{self, Drafts, Undrafted},
    error,
    events::{Buffers, Events, end_reason},
    load::Load,
    new_request::NewRequest,
    prefix_store::{BlockUses, MissingBlocks, PrefixStore},
    step_record,
    text::{StopRegex, TokenTable},
    waits::Waiting,
};

/// A request is queued.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct Added {
    request_id: u64,
    slots: Vec<u32>,
    queue_position: usize,
}

/// Owns requests and KV blocks; decides which tokens each step computes.
#[pyclass(module = "chairlift._core")]
pub(crate) struct Scheduler {
    inner: scheduler::Scheduler,
    plan: Plan,
    event_buffers: Buffers,
    #[pyo3(get)]
    wake_at: Option<u64>,
    #[pyo3(get)]
    max_context_len: usize,
    #[pyo3(get)]
    max_answers: usize,
    #[pyo3(get)]
    plan_capacity: usize,
    #[pyo3(get)]
    num_slots: usize,
}

fn policy(name: &str, batch_size: usize, window: u64, timeout: u64) -> PyResult<Policy> {
    match name {
        "continuous" => Ok(Policy::Continuous),
        "dynamic" => Ok(Policy::Batched {
            size: batch_size,
            patience: window,
        }),
        "static" => Ok(Policy::Batched {
            size: batch_size,
            patience: timeout,
        }),
        _ => Err(error::ConfigError::new_err(format!(
            "policy: expected continuous, dynamic or static, got {name:?}"
        ))),
    }
}

impl Scheduler {
    /// The settings, for a fleet of the same.
    pub(crate) fn config(&self) -> &Config {
        self.inner.config()
    }
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (*, policy, batch_size, batch_window, batch_timeout, max_num_seqs,
        max_num_batched_tokens, max_model_len, max_queued_requests, vocab_size, block_size,
        num_blocks, kv_windows, prefix_cache, hash_key, token_table, steps_in_flight = 1,
        step_budget = None, num_host_blocks = 0, swap_block_time = 0, max_step_drafts = 0,
        prompt_lookup = false, state_snapshots = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python class"
    )]
    fn new(
        policy: &str,
        batch_size: usize,
        batch_window: u64,
        batch_timeout: u64,
        max_num_seqs: usize,
        max_num_batched_tokens: usize,
        max_model_len: usize,
        max_queued_requests: usize,
        vocab_size: usize,
        block_size: usize,
        num_blocks: usize,
        kv_windows: Vec<Option<u32>>,
        prefix_cache: bool,
        hash_key: [u8; 32],
        token_table: &TokenTable,
        steps_in_flight: usize,
        step_budget: Option<u64>,
        num_host_blocks: usize,
        swap_block_time: u64,
        max_step_drafts: usize,
        prompt_lookup: bool,
        state_snapshots: Option<usize>,
    ) -> PyResult<Self> {
        let kv_groups = kv_windows.into_iter().map(|window| KvGroup { window });
        let config = Config {
            policy: self::policy(policy, batch_size, batch_window, batch_timeout)?,
            max_num_seqs,
            max_num_batched_tokens,
            step_budget,
            max_model_len,
            max_queued_requests,
            vocab_size,
            block_size,
            num_blocks,
            num_host_blocks,
            swap_block_time,
            kv_groups: kv_groups.collect(),
            prefix_cache,
            hash_key,
            steps_in_flight,
            max_step_drafts,
            prompt_lookup,
            state_snapshots,
        };
        let table = Arc::clone(&token_table.inner);
        let inner = scheduler::Scheduler::new(config, table).map_err(|e| error::config(&e))?;
        let config = inner.config();
        Ok(Self {
            plan: Plan::default(),
            event_buffers: Buffers::default(),
            wake_at: None,
            max_context_len: config.max_context_len(),
            max_answers: config.max_sequences(),
            plan_capacity: Plan::capacity(config),
            num_slots: config.num_slots(),
            inner,
        })
    }

    fn add(&mut self, py: Python<'_>, now: u64, request: NewRequest<'_>) -> PyResult<Added> {
        let added = self.inner.add(now, request.into());
        let added = added.map_err(|refusal| error::refused(py, refusal))?;
        Ok(Added {
            request_id: added.request.0,
            slots: added.slots,
            queue_position: added.queue_position,
        })
    }

    #[pyo3(signature = (now, request_id, reason = "cancelled"))]
    fn abort(&mut self, now: u64, request_id: u64, reason: &str) -> PyResult<bool> {
        let end = end_reason(reason)
            .ok_or_else(|| PyValueError::new_err(format!("reason: unknown {reason:?}")))?;
        Ok(self.inner.abort(now, RequestId(request_id), end))
    }

    #[pyo3(signature = (now, request_id, *, max_tokens = None, min_tokens = 0, stop = vec![],
        stop_token_ids = vec![], include_stop = false, priority = None, queue_timeout = None,
        time_to_first_token = None, time_limit = None, credit = 0,
        credit_is_final = false, paused = None, stop_regex = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn change(
        &mut self,
        now: u64,
        request_id: u64,
        max_tokens: Option<usize>,
        min_tokens: usize,
        stop: Vec<String>,
        stop_token_ids: Vec<i32>,
        include_stop: bool,
        priority: Option<i32>,
        queue_timeout: Option<u64>,
        time_to_first_token: Option<u64>,
        time_limit: Option<u64>,
        credit: u64,
        credit_is_final: bool,
        paused: Option<bool>,
        stop_regex: Option<PyRef<'_, StopRegex>>,
    ) -> bool {
        let change = Change {
            stopping: max_tokens.map(|max_tokens| Stopping {
                max_tokens,
                min_tokens,
                stop_token_ids,
                stop,
                stop_regex: stop_regex.map(|regex| Arc::clone(&regex.inner)),
                include_stop,
            }),
            schedule: priority.map(|priority| Schedule {
                priority,
                queue_timeout,
                time_to_first_token,
                time_limit,
            }),
            credit,
            credit_is_final,
            paused,
        };
        self.inner
            .change(now, RequestId(request_id), change)
            .is_ok()
    }

    #[pyo3(signature = (request_id, tokens, index = 0, by_model = false))]
    #[expect(clippy::needless_pass_by_value, reason = "a list of the Python method")]
    fn draft(&mut self, request_id: u64, tokens: Vec<i32>, index: u32, by_model: bool) -> bool {
        let request = RequestId(request_id);
        if by_model {
            return self.inner.draft_by_model(request, index, &tokens);
        }
        self.inner.draft(request, index, &tokens)
    }

    fn undrafted(&mut self, pass_ns: u64) -> (usize, Vec<Undrafted>) {
        drafts::undrafted(&mut self.inner, pass_ns)
    }

    fn tokens_from(&self, slot: u32, start: usize) -> Vec<i32> {
        self.inner.tokens_from(slot, start).to_vec()
    }

    /// Proposes drafts as [`Scheduler::draft`] does, those of many answers at once.
    fn draft_all(&mut self, drafts: &Drafts) {
        for ((request, index), tokens) in &drafts.found {
            self.inner.draft(RequestId(*request), *index, tokens);
        }
    }

    fn schedule(&mut self, now: u64, plan: TensorMut) -> PyResult<Option<u64>> {
        let mut borrows = Borrows::default();
        let buffer = borrows.slice_mut::<i32>("plan", &plan)?;
        if buffer.len() < self.plan_capacity {
            let (expected, got) = (self.plan_capacity, buffer.len());
            return Err(PyValueError::new_err(format!(
                "plan: expected at least {expected} integers, got {got}"
            )));
        }
        match self.inner.schedule(now, &mut self.plan) {
            Next::Run(StepId(step)) => {
                self.wake_at = None;
                self.plan.encode(buffer);
                Ok(Some(step))
            }
            Next::Idle { wake_at } => {
                self.wake_at = wake_at;
                Ok(None)
            }
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "of the Python method")]
    fn update(&mut self, now: u64, step: u64, tokens: Tensor) -> PyResult<Events> {
        let mut borrows = Borrows::default();
        let tokens = borrows.slice::<i32>("tokens", &tokens)?;
        let updated = self.inner.update(now, StepId(step), tokens);
        updated.map_err(error::step)?;
        Ok(self.take_events())
    }

    fn fail(&mut self, now: u64, step: u64, failing: Vec<u64>) -> PyResult<Events> {
        let failing: Vec<_> = failing.iter().map(|&id| RequestId(id)).collect();
        let failed = self.inner.fail(now, StepId(step), &failing);
        failed.map_err(error::step)?;
        Ok(self.take_events())
    }

    fn last_step<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Vec<u64>) {
        let record = self.inner.last_step();
        let preempted = record.preempted.iter().map(|&RequestId(id)| id);
        let rows = PyBytes::new(py, bytemuck::cast_slice(&step_record::packed(record)));
        (rows, preempted.collect())
    }

    fn take_events(&mut self) -> Events {
        self.event_buffers
            .take(|events| self.inner.take_events(events))
    }

    fn report_blocks(&mut self, tenants: Vec<String>) {
        self.inner.report_blocks(tenants);
    }

    fn take_block_events(&mut self) -> Option<BlockEvents> {
        let events = self.inner.take_block_events();
        (!events.list.is_empty()).then(|| BlockEvents::new(events, self.inner.config().block_size))
    }

    fn block_snapshot(&self) -> BlockEvents {
        BlockEvents::new(self.inner.block_snapshot(), self.inner.config().block_size)
    }

    fn track_block_uses(&mut self) {
        self.inner.track_block_uses();
    }

    fn take_block_uses(&mut self) -> Option<BlockUses> {
        let uses = self.inner.take_block_uses();
        (!uses.is_empty()).then_some(BlockUses(uses))
    }

    fn take_state_uses<'py>(&mut self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, u32, bool)> {
        let uses = self.inner.take_state_uses().into_iter();
        uses.map(|used| (PyBytes::new(py, &used.name), used.snapshot, used.is_hit))
            .collect()
    }

    fn missing_blocks(&mut self, request_id: u64) -> MissingBlocks {
        MissingBlocks(self.inner.missing_blocks(RequestId(request_id)))
    }

    fn stored_blocks(&mut self, request_id: u64, store: &PrefixStore) -> MissingBlocks {
        let request = RequestId(request_id);
        MissingBlocks(self.inner.stored_blocks(request, store))
    }

    fn block_names(&mut self, request_id: u64, first: usize) -> MissingBlocks {
        MissingBlocks(self.inner.block_names(RequestId(request_id), first))
    }

    fn predict_prompt(&self, start: usize, count: usize) -> Option<u64> {
        self.inner.predict_prompt(start, count)
    }

    fn hold(&mut self, now: u64, request_id: u64) -> bool {
        self.inner.hold(now, RequestId(request_id))
    }

    fn release_held(&mut self, now: u64, request_id: u64) {
        self.inner.release_held(now, RequestId(request_id));
    }

    fn insert_blocks(&mut self, request_id: u64, first: usize, count: usize) -> Option<Vec<u32>> {
        let request = RequestId(request_id);
        self.inner.insert_blocks(request, first, count)
    }

    fn insert_state(&mut self, request_id: u64) -> Option<u32> {
        self.inner.insert_state(RequestId(request_id))
    }

    fn remove_adapter(&mut self, slot: u32) {
        self.inner.remove_adapter(slot);
    }

    fn with_adapter(&self, slot: u32) -> Vec<u64> {
        let users = self.inner.with_adapter(slot);
        users.into_iter().map(|RequestId(id)| id).collect()
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn load(&self) -> Load {
        self.inner.load().into()
    }

    fn explain(&self, request_id: u64) -> Option<Waiting> {
        self.inner.explain(RequestId(request_id)).map(Waiting::from)
    }

    fn waiting_of(&self, tenant: &str, max_requests: usize) -> (Vec<(u64, Waiting)>, usize) {
        let list = self.inner.waiting_of(tenant, max_requests);
        let requests = list.requests.into_iter();
        let requests = requests.map(|(RequestId(id), explanation)| (id, explanation.into()));
        (requests.collect(), list.num_waiting)
    }

    fn block_map<'py>(&self, py: Python<'py>, tenant: &str) -> Bound<'py, PyBytes> {
        let cells = self.inner.block_map(tenant).into_iter();
        let packed = cells.map(|cell| {
            [
                cell.held,
                cell.held_by_tenant,
                cell.shared,
                cell.cached,
                cell.free,
            ]
        });
        PyBytes::new(py, bytemuck::cast_slice(&packed.collect::<Vec<_>>()))
    }

    #[getter]
    fn num_waiting(&self) -> usize {
        self.inner.num_waiting()
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.check_invariants())
            .map_err(error::violation)
    }
}
