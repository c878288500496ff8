//! The scheduler of a replica, and what a runner would know.

use std::{collections::HashMap, sync::Arc};

use chairlift_core::{
    Nanos, NewRequest, RequestId, Scheduler,
    events::{EndReason, EventKind, Events},
    plan::{Plan, PlanView},
    scheduler::Next,
};
use chairlift_text::TokenTable;

use self::{decode::Loader, prefill::Sender};
use crate::{
    command::{Command, Context},
    outcomes::{Steps, Unanswered},
    roles::Missing,
};

mod decode;
mod prefill;

/// What a replica does of a request.
#[derive(Clone, Debug)]
enum Role {
    /// All.
    Both,
    /// It computes prompts for others.
    Prefill(Sender),
    /// It lets others compute long prompts.
    Decode(Loader),
}

/// What a row has.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Its request.
    index: u32,
    num_computed: usize,
}

/// The scheduler and what a runner would know. It exists only in a replica that has had a request.
#[derive(Clone)]
pub(crate) struct Engine {
    role: Role,
    scheduler: Scheduler,
    plan: Plan,
    buffer: Vec<i32>,
    events: Events,
    rows: Vec<Row>,
    /// The request in each slot of the scheduler.
    in_slot: Vec<u32>,
    /// Requests that have not ended.
    pub(crate) live: HashMap<RequestId, u32, foldhash::fast::FixedState>,
    /// Requests that get a token in the step at hand, and the tokens.
    sampled: Vec<u32>,
    tokens: Vec<i32>,
}

impl Engine {
    pub(crate) fn new(number: usize, context: &Context<'_>) -> Self {
        let config = context.config;
        let table = Arc::new(TokenTable::new(&[], &[], &[], false));
        let scheduler = Scheduler::new(config.clone(), table);
        let mut scheduler = scheduler.expect("invariant: the configuration was checked");
        let role = match context.roles {
            None => Role::Both,
            Some(roles) if number < roles.num_prefill => Role::Prefill(Sender::default()),
            Some(_) => {
                scheduler.track_block_uses();
                Role::Decode(Loader::default())
            }
        };
        Self {
            role,
            scheduler,
            plan: Plan::default(),
            buffer: vec![0; Plan::capacity(config)],
            events: Events::default(),
            rows: vec![Row::default(); config.max_num_seqs],
            in_slot: vec![0; config.num_slots()],
            live: HashMap::default(),
            sampled: Vec::new(),
            tokens: Vec::new(),
        }
    }

    pub(crate) fn execute(&mut self, now: Nanos, command: Command, context: &mut Context<'_>) {
        let transfers = &mut context.outcomes.transfers;
        match (command, &mut self.role) {
            (Command::Add(index), _) => self.add(now, index, context),
            (Command::Cancel(index), _) => {
                if let Some(id) = context.outcomes.progress[index as usize].id {
                    self.scheduler.abort(now, id, EndReason::Cancelled);
                }
            }
            (Command::Flush, _) => self.scheduler.flush(),
            (Command::Received { index, end }, Role::Decode(loader)) => loader.received(index, end),
            (Command::Over(index), Role::Decode(loader)) => loader.over(index),
            (Command::Late(index), Role::Decode(loader)) => {
                loader.late(now, index, &mut self.scheduler, transfers);
            }
            (Command::Prefill(missing), Role::Prefill(_)) => self.prefill(now, missing, context),
            (Command::Abort(index), Role::Prefill(sender)) => {
                if let Some(id) = sender.request(index) {
                    self.scheduler.abort(now, id, EndReason::Cancelled);
                }
            }
            (command, role) => unreachable!("invariant: no {command:?} for {role:?}"),
        }
    }

    /// Computes a prompt for another replica.
    fn prefill(&mut self, now: Nanos, missing: Missing, context: &mut Context<'_>) {
        let Role::Prefill(sender) = &mut self.role else {
            return;
        };
        let index = missing.index;
        let request = &context.work.requests[index as usize];
        let mut prompt = context.work.prompt(index as usize);
        prompt.truncate((missing.first + missing.count) * context.config.block_size + 1);
        let mut new = NewRequest::new(prompt, 1);
        new.namespace.tenant = request.tenant.to_string();
        match self.scheduler.add(now, new) {
            Ok(added) => {
                self.in_slot[added.slots[0] as usize] = index;
                self.live.insert(added.request, index);
                sender.begin(now, added.request, missing);
            }
            Err(_) => context.messages.push(sender.end(now, index)),
        }
    }

    fn add(&mut self, now: Nanos, index: u32, context: &mut Context<'_>) {
        let request = &context.work.requests[index as usize];
        let after = |delay: Option<Nanos>| delay.map(|delay| now + delay);
        let prompt = context.work.prompt(index as usize);
        let mut new = NewRequest::new(prompt, request.num_output);
        new.namespace.tenant = request.tenant.to_string();
        (new.cache_read, new.cache_write) = (request.cache_read, request.cache_write);
        new.queue_deadline = after(request.queue_timeout);
        new.first_token_by = after(request.time_to_first_token);
        new.deadline = after(request.time_limit);
        new.priority = request.priority;
        match self.scheduler.add(now, new) {
            Ok(added) => {
                self.in_slot[added.slots[0] as usize] = index;
                self.live.insert(added.request, index);
                context.outcomes.progress[index as usize].id = Some(added.request);
                if let Role::Decode(loader) = &mut self.role {
                    let wanted = loader.begin(
                        now,
                        (index, added.request),
                        request.queue_timeout,
                        &mut self.scheduler,
                        &mut context.outcomes.transfers,
                    );
                    context.messages.extend(wanted.map(|wanted| (now, wanted)));
                }
            }
            Err(refusal) => {
                let reason = Unanswered::Refused(refusal.reason);
                context.outcomes.unanswered.push((index, reason));
                context.ended.push((now, index));
            }
        }
    }

    /// Runs a step and returns when it ends; without one, when there may be one.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        context: &mut Context<'_>,
        number: usize,
    ) -> Result<Nanos, Option<Nanos>> {
        if let Role::Decode(loader) = &mut self.role {
            loader.place(now, &mut self.scheduler, &mut context.outcomes.transfers);
            self.scheduler.take_block_uses();
        }
        let step = match self.scheduler.schedule(now, &mut self.plan) {
            Next::Run(step) => step,
            Next::Idle { wake_at } => return Err(wake_at),
        };
        let length = self.plan.encode(&mut self.buffer);
        let plan = PlanView::parse(&self.buffer[..length]).expect("invariant: a plan of the core");
        for &[row, slot, _, start, _] in plan.assigned {
            self.rows[row as usize] = Row {
                index: self.in_slot[slot as usize],
                num_computed: start as usize,
            };
        }
        self.sampled.clear();
        self.tokens.clear();
        let (mut num_context, mut end) = (0, 0);
        let mut samples = plan.sample_rows.iter().peekable();
        for (&row, &count) in plan.rows.iter().zip(plan.num_tokens) {
            let row = &mut self.rows[row as usize];
            row.num_computed += count as usize;
            num_context += row.num_computed;
            end += count;
            if samples.next_if_eq(&&(end - 1)).is_some() {
                self.sampled.push(row.index);
                let token = context.work.token(row.index as usize, row.num_computed);
                self.tokens.push(token);
            }
        }
        let (num_rows, num_tokens) = (plan.rows.len(), plan.input_ids.len());
        let end = now + context.step_time.duration(num_tokens, num_context);
        let updated = self.scheduler.update(end, step, &self.tokens);
        updated.expect("invariant: the step in flight, and a token for each of its rows");
        if let Role::Prefill(sender) = &mut self.role {
            let rows = plan.rows.iter().map(|&row| self.rows[row as usize]);
            let roles = context.roles.expect("invariant: its role is of these");
            let sent = rows.filter_map(|row| {
                let (block_size, time) = (context.config.block_size, roles.transfer_s * 1e9);
                sender.computed(end, row.index, row.num_computed, block_size, time)
            });
            context.messages.extend(sent);
        } else {
            for &index in &self.sampled {
                context.outcomes.token(index as usize, end);
            }
        }
        self.count(num_rows, num_tokens, &mut context.outcomes.steps[number]);
        Ok(end)
    }

    fn count(&self, num_rows: usize, num_tokens: usize, steps: &mut Steps) {
        steps.num_steps += 1;
        steps.num_rows += num_rows as u64;
        steps.num_tokens += num_tokens as u64;
        let load = self.scheduler.load();
        let num_used = load.num_blocks - load.num_free_blocks;
        if num_used > 0 {
            let num_slots = num_used * self.scheduler.config().block_size;
            steps.kv_waste += 1.0 - load.num_kv_tokens as f64 / num_slots as f64;
        }
    }

    pub(crate) fn note_ends(&mut self, now: Nanos, context: &mut Context<'_>) {
        self.scheduler.take_events(&mut self.events);
        if self.events.ends.is_empty() {
            return;
        }
        for event in &self.events.list {
            let EventKind::Ended(end) = event.kind else {
                continue;
            };
            let end = &self.events.ends[end];
            let index = self.live.remove(&event.request);
            let index = index.expect("invariant: a request ends once");
            if let Role::Prefill(sender) = &mut self.role {
                context.messages.push(sender.end(now, index));
                continue;
            }
            let progress = &mut context.outcomes.progress[index as usize];
            progress.num_cached = end.stats.cached_tokens - end.stats.transferred_tokens;
            context.outcomes.transfers.num_tokens += end.stats.transferred_tokens as u64;
            if let EndReason::Failed(failure) = end.reason {
                let reason = Unanswered::Failed(failure);
                context.outcomes.unanswered.push((index, reason));
            } else {
                progress.ended = end.stats.finished;
            }
            context.ended.push((now, index));
        }
    }
}
