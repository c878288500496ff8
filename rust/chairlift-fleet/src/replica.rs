//! One replica: a real scheduler, and the time to which it has run.

use std::{collections::HashMap, collections::VecDeque, mem, sync::Arc};

use chairlift_core::{
    Config, Nanos, NewRequest, RequestId, Scheduler,
    events::{EndReason, EventKind, Events},
    plan::{Plan, PlanView},
    scheduler::Next,
};
use chairlift_text::TokenTable;

use crate::{
    options::StepTime,
    outcomes::{NEVER, Outcomes, Steps, Unanswered},
    work::Work,
};

/// What a replica is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Add(u32),
    Cancel(u32),
    Flush,
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
struct Engine {
    scheduler: Scheduler,
    plan: Plan,
    buffer: Vec<i32>,
    events: Events,
    rows: Vec<Row>,
    /// The request in each slot of the scheduler.
    in_slot: Vec<u32>,
    /// Requests that have not ended.
    live: HashMap<RequestId, u32, foldhash::fast::FixedState>,
    /// Requests that get a token in the step at hand, and the tokens.
    sampled: Vec<u32>,
    tokens: Vec<i32>,
}

/// What a replica needs to run, and where it writes what happens.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) work: &'a Work,
    pub(crate) step_time: &'a StepTime,
    pub(crate) outcomes: &'a mut Outcomes,
    /// Requests that ended, and when.
    pub(crate) ended: &'a mut Vec<(Nanos, u32)>,
}

#[derive(Clone)]
pub(crate) struct Replica {
    number: usize,
    engine: Option<Box<Engine>>,
    /// The time to which it has run: of a step that has begun, its end.
    now: Nanos,
    /// It has nothing to run; at `wake_at` there may be something, even if nothing is told before.
    is_idle: bool,
    wake_at: Option<Nanos>,
    inbox: VecDeque<(Nanos, Command)>,
    /// Requests that ended at `now`.
    just_ended: Vec<u32>,
}

impl Replica {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            number,
            engine: None,
            now: 0,
            is_idle: true,
            wake_at: None,
            inbox: VecDeque::new(),
            just_ended: Vec::new(),
        }
    }

    pub(crate) fn tell(&mut self, time: Nanos, command: Command) {
        self.inbox.push_back((time, command));
    }

    /// Requests that it has, those on the way included.
    pub(crate) fn num_requests(&self) -> usize {
        let adds = self
            .inbox
            .iter()
            .filter(|(_, command)| matches!(command, Command::Add(_)));
        adds.count() + self.engine.as_ref().map_or(0, |engine| engine.live.len())
    }

    /// When it has something to do next; None is never.
    pub(crate) fn next_time(&self) -> Option<Nanos> {
        if !self.is_idle {
            return Some(self.now);
        }
        let told = self.inbox.front().map(|&(time, _)| time);
        let due = [self.wake_at, told].into_iter().flatten().min()?;
        Some(due.max(self.now))
    }

    /// Runs until it has nothing to do before `until`. A step that begins before ends after it: what is told meanwhile
    /// comes between two steps, as to a server.
    pub(crate) fn advance(&mut self, until: Nanos, context: &mut Context<'_>) {
        while let Some(time) = self.next_time().filter(|&time| time < until) {
            self.now = time;
            let engine = self
                .engine
                .get_or_insert_with(|| Box::new(Engine::new(context.config)));
            self.just_ended.clear();
            let num_ended = context.ended.len();
            while let Some(&(time, command)) = self.inbox.front()
                && time <= self.now
            {
                self.inbox.pop_front();
                engine.execute(self.now, command, context);
            }
            match engine.step(self.now, context, self.number) {
                Ok(end) => (self.now, self.is_idle) = (end, false),
                Err(wake_at) => (self.wake_at, self.is_idle) = (wake_at, true),
            }
            engine.note_ends(self.now, context);
            let ended = context.ended[num_ended..].iter();
            self.just_ended.extend(ended.map(|&(_, index)| index));
        }
    }

    /// Loses everything at `now`; returns the requests that it had. What the step at hand would have given is not given.
    pub(crate) fn lose(&mut self, now: Nanos, outcomes: &mut Outcomes) -> Vec<u32> {
        let mut lost = self.take_inbox();
        if let Some(engine) = self.engine.take() {
            lost.extend(engine.live.values());
        }
        let just_ended = mem::take(&mut self.just_ended);
        if self.now > now {
            let is_answered = |index: &u32| outcomes.progress[*index as usize].ended != NEVER;
            lost.extend(just_ended.into_iter().filter(is_answered));
            for &index in &lost {
                outcomes.take_back(index as usize, self.now);
            }
        }
        lost.sort_unstable();
        (self.now, self.is_idle, self.wake_at) = (now, true, None);
        lost
    }

    /// Takes the requests that are on the way to it.
    fn take_inbox(&mut self) -> Vec<u32> {
        let told = self.inbox.drain(..);
        let add = |(_, command)| match command {
            Command::Add(index) => Some(index),
            _ => None,
        };
        told.filter_map(add).collect()
    }
}

impl Engine {
    fn new(config: &Config) -> Self {
        let table = Arc::new(TokenTable::new(&[], &[], &[], false));
        let scheduler = Scheduler::new(config.clone(), table);
        Self {
            scheduler: scheduler.expect("invariant: the configuration was checked"),
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

    fn execute(&mut self, now: Nanos, command: Command, context: &mut Context<'_>) {
        match command {
            Command::Add(index) => self.add(now, index, context),
            Command::Cancel(index) => {
                if let Some(id) = context.outcomes.progress[index as usize].id {
                    self.scheduler.abort(now, id, EndReason::Cancelled);
                }
            }
            Command::Flush => self.scheduler.flush(),
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
            }
            Err(refusal) => {
                let reason = Unanswered::Refused(refusal.reason);
                context.outcomes.unanswered.push((index, reason));
                context.ended.push((now, index));
            }
        }
    }

    /// Runs a step and returns when it ends; without one, when there may be one.
    fn step(
        &mut self,
        now: Nanos,
        context: &mut Context<'_>,
        number: usize,
    ) -> Result<Nanos, Option<Nanos>> {
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
        for &index in &self.sampled {
            context.outcomes.token(index as usize, end);
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

    fn note_ends(&mut self, now: Nanos, context: &mut Context<'_>) {
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
            let progress = &mut context.outcomes.progress[index as usize];
            progress.num_cached = end.stats.cached_tokens;
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
