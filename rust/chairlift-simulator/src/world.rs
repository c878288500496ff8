//! The real scheduler in a world of clients, a device and a clock; every event is checked when it has happened.
//!
//! Before an event the world says which requests it owes what ([`crate::client::Due`]); afterwards exactly that must
//! have been delivered. The world knows plans and events only: it never looks inside the scheduler, except through
//! `check_invariants`.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use chairlift_core::{
    RefusalReason, RequestId, Scheduler,
    events::{EndReason, EventKind, Events, Failure},
    plan::Plan,
    scheduler::{Next, StepId},
};
use chairlift_text::TokenTable;

use crate::{
    client::{Client, Due, Wait},
    device::{Device, RowRun, Write},
    event::{Event, Outcome},
    mirror::{Found, Mirror, REPORTED},
    random::mix,
    scenario::Scenario,
    service::Service,
    store::Store,
    tally::{Sight, Tally},
    workload::{Arrival, Flaw, Label},
};

/// What is wrong, in one sentence.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// Fails the run with a formatted sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// A step in flight.
pub(crate) struct InFlightStep {
    pub(crate) step: StepId,
    pub(crate) runs: Vec<RowRun>,
    /// Index of each run's client.
    pub(crate) clients: Vec<usize>,
    pub(crate) writes: Vec<Write>,
    /// The recurrent states that it saved.
    pub(crate) saves: Vec<[i32; 3]>,
}

/// The calls of `schedule` for one plan. One may preempt and find nothing to run beside a step in flight: the plan of a
/// later one shows it.
#[derive(Default)]
pub(crate) struct Attempt {
    /// The oldest running at the first call.
    pub(crate) oldest: Option<usize>,
    /// There was a call before, beside a step in flight.
    pub(crate) is_repeated: bool,
    /// A request was changed between the calls.
    pub(crate) is_unsettled: bool,
    /// Requests that have lost their row.
    pub(crate) preempted: Vec<usize>,
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) scheduler: Scheduler,
    pub(crate) device: Device,
    pub(crate) store: Store,
    pub(crate) now: u64,
    /// The latest time that the scheduler was told.
    pub(crate) latest: u64,
    pub(crate) rows_are_taken: bool,
    pub(crate) clients: Vec<Client>,
    by_label: HashMap<Label, usize>,
    by_id: HashMap<RequestId, usize>,
    pub(crate) by_slot: Vec<usize>,
    /// Clients that have not ended.
    pub(crate) live: Vec<usize>,
    /// In order of admission.
    pub(crate) running: Vec<usize>,
    pub(crate) attempt: Attempt,
    /// Steps when a request was last changed.
    pub(crate) last_change: u64,
    /// The client that each row was last assigned to, until the row is freed.
    pub(crate) rows: Vec<Option<usize>>,
    pub(crate) in_flight_steps: VecDeque<InFlightStep>,
    /// Clients before this one were there at the last flush.
    pub(crate) flushed_before: usize,
    owed: Vec<usize>,
    /// Full prompt blocks of admitted requests, and how many of them were found in the cache.
    pub(crate) num_prefix_queries: u64,
    pub(crate) num_prefix_hits: u64,
    pub(crate) service: Service,
    /// When the last request of each tenant ended.
    pub(crate) tenants_left: BTreeMap<u8, u64>,
    /// The last event found nothing to run.
    pub(crate) idle: Option<Next>,
    pub(crate) plan: Plan,
    pub(crate) buffer: Vec<i32>,
    events: Events,
    /// Log probabilities of the step that has just ended: client, position and token of each.
    pub(crate) scored: Vec<(usize, usize, i32)>,
    pub(crate) mirror: Mirror,
    /// New requests that have joined since the last events of blocks.
    pub(crate) found: Vec<Found>,
    pub(crate) tally: Tally,
    pub(crate) trace_hash: u64,
    /// What the last event did, where that is more than the event says.
    pub(crate) note: Option<String>,
    pub(crate) takes_notes: bool,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, token_table: &Arc<TokenTable>) -> Checked<Self> {
        let (spoilt, name) = scenario.spoilt_config();
        let refused = Scheduler::new(spoilt, Arc::clone(token_table)).err();
        ensure!(
            refused.is_some_and(|error| error.name == name),
            "{name} out of its range is not refused by name"
        );
        let config = scenario.config.clone();
        let mut scheduler =
            Scheduler::new(config.clone(), Arc::clone(token_table)).map_err(|e| e.to_string())?;
        scheduler.report_blocks(REPORTED.map(str::to_owned).to_vec());
        let store = Store::new(&mut scheduler);
        Ok(Self {
            scheduler,
            device: Device::new(&config),
            store,
            now: 1 << 40,
            latest: 0,
            rows_are_taken: false,
            clients: Vec::new(),
            by_label: HashMap::new(),
            by_id: HashMap::new(),
            by_slot: vec![usize::MAX; config.num_slots()],
            live: Vec::new(),
            running: Vec::new(),
            attempt: Attempt::default(),
            last_change: 0,
            rows: vec![None; config.max_num_seqs],
            in_flight_steps: VecDeque::new(),
            flushed_before: 0,
            owed: Vec::new(),
            num_prefix_queries: 0,
            num_prefix_hits: 0,
            service: Service::default(),
            tenants_left: BTreeMap::new(),
            idle: None,
            plan: Plan::default(),
            buffer: vec![0; Plan::capacity(&config)],
            events: Events::default(),
            scored: Vec::new(),
            mirror: Mirror::default(),
            found: Vec::new(),
            tally: Tally::default(),
            trace_hash: 0,
            note: None,
            takes_notes: false,
            scenario: scenario.clone(),
        })
    }

    /// Lets an event happen and checks all that can be checked cheaply, and everything now and then.
    pub(crate) fn apply(&mut self, event: &Event) -> Checked {
        self.note = None;
        self.idle = None;
        self.tally.saw(Sight::Events);
        if !self.in_flight_steps.is_empty()
            && !matches!(event, Event::Schedule | Event::Complete(_))
        {
            self.tally.saw(Sight::Late);
        }
        match event {
            Event::Add(arrival) => self.add(arrival)?,
            Event::Abort(label, reason) => self.abort(*label, reason)?,
            Event::Change(label, alteration) => self.change(*label, alteration)?,
            Event::Draft(label, answer, tokens) => self.draft(*label, *answer, tokens)?,
            Event::Schedule => self.schedule()?,
            Event::Complete(Outcome::Sampled) => self.update(&[])?,
            Event::Complete(Outcome::NotFinite(labels)) => self.update(labels)?,
            Event::Complete(Outcome::Failed(failing)) => self.fail(failing)?,
            Event::Complete(Outcome::Refused) => self.misreport()?,
            Event::Flush => {
                self.tally.saw(Sight::Flushes);
                self.scheduler.flush();
                self.flushed_before = self.clients.len();
            }
            Event::Clock(by) => {
                self.tally.saw(if *by < 0 {
                    Sight::ClockBack
                } else {
                    Sight::ClockForward
                });
                self.now = self.now.saturating_add_signed(*by);
            }
            Event::Evict(count) => {
                let evicted = self.scheduler.evict_cached(*count);
                ensure!(
                    evicted <= *count,
                    "{evicted} blocks were evicted, at most {count} were to be"
                );
                self.tally.add(Sight::Evicted, evicted as u64);
            }
            Event::Load(label) => self.load_blocks(*label)?,
        }
        self.collect()?;
        self.follow_blocks()?;
        self.check_service()?;
        self.check_load()?;
        if self
            .tally
            .get(Sight::Events)
            .is_multiple_of(self.scenario.check_every as u64)
        {
            self.check_deep()?;
        }
        Ok(())
    }

    fn add(&mut self, arrival: &Arrival) -> Checked {
        let latest = self.tell_time();
        let (new, answers) = arrival.build(self.now, &self.scenario.config);
        let before = self.scheduler.load();
        let expected = self.expected_refusal(arrival, new.prompt.len(), before.num_waiting);
        match (self.scheduler.add(self.now, new), expected) {
            (Err(refusal), Some(reason)) => {
                ensure!(
                    refusal.reason == reason,
                    "refused for {:?}, expected {reason:?}",
                    refusal.reason
                );
                ensure!(
                    self.scheduler.load() == before,
                    "a refused request leaves something behind"
                );
                let is_full = reason == RefusalReason::QueueFull;
                self.tally.saw(if is_full {
                    Sight::QueueFull
                } else {
                    Sight::Flawed
                });
            }
            (Ok(added), None) => {
                let index = self.clients.len();
                ensure!(
                    self.by_id.insert(added.request, index).is_none(),
                    "{:?} is used again",
                    added.request
                );
                self.by_label.insert(arrival.label, index);
                self.tally.saw(Sight::Accepted);
                let is_one = arrival.num_sequences == 1;
                self.tally.add(Sight::Groups, u64::from(!is_one));
                ensure!(
                    added.slots.len() == arrival.num_sequences,
                    "{} answers have {} slots",
                    arrival.num_sequences,
                    added.slots.len()
                );
                for (answer, &slot) in answers.into_iter().zip(&added.slots) {
                    self.take_slot(slot as usize)?;
                    let place = self.clients.len() - index;
                    let mut client = Client::new(arrival, place, added.request, self.now, answer);
                    client.reads_cache &= self.scenario.config.prefix_cache;
                    client.credit = arrival.credit.map(|_| 0);
                    let first_token_by = arrival.first_token_by(self.now);
                    client.aim(first_token_by, self.scheduler.costs());
                    self.live.push(self.clients.len());
                    self.clients.push(client);
                }
                self.deal(index, arrival.credit.unwrap_or(0));
                for client in &mut self.clients[index..] {
                    client.wait = Wait::new(latest, client.is_suspended());
                }
                self.begin_to_wait(index);
                self.check_position(index, added.queue_position)?;
            }
            (Ok(_), Some(reason)) => {
                return Err(format!(
                    "a request is taken, expected a refusal for {reason:?}"
                ));
            }
            (Err(refusal), None) => return Err(format!("a good request is refused: {refusal:?}")),
        }
        Ok(())
    }

    fn expected_refusal(
        &self,
        arrival: &Arrival,
        num_prompt: usize,
        num_waiting: usize,
    ) -> Option<RefusalReason> {
        let config = &self.scenario.config;
        // One token behind the prompt is never computed.
        let room = usize::from(arrival.max_tokens > 1);
        match arrival.flaw {
            Some(flaw) if flaw != Flaw::TooLong => Some(RefusalReason::BadParameter),
            // Settings that shrinking has made so.
            _ if arrival.num_sequences > config.max_sequences() => {
                Some(RefusalReason::BadParameter)
            }
            // Of a request that shrinking has made so.
            _ if arrival.min_tokens > arrival.max_tokens => Some(RefusalReason::BadParameter),
            _ if num_prompt > config.max_model_len - room => Some(RefusalReason::PromptTooLong),
            _ if num_prompt > config.max_context_len() - room => Some(RefusalReason::KvCapacity),
            _ if num_waiting + arrival.num_sequences > config.max_queued_requests => {
                Some(RefusalReason::QueueFull)
            }
            _ => None,
        }
    }

    /// A slot goes to the client that comes next.
    fn take_slot(&mut self, slot: usize) -> Checked {
        let owner = self.by_slot[slot];
        let is_free = owner == usize::MAX || !self.clients[owner].is_live();
        ensure!(is_free, "slot {slot} belongs to two requests");
        self.by_slot[slot] = self.clients.len();
        Ok(())
    }

    pub(crate) fn find(&self, label: Label) -> Option<usize> {
        self.by_label.get(&label).copied()
    }

    /// Says what the event at hand owes a client.
    pub(crate) fn owe(&mut self, client: usize, due: Due) {
        self.clients[client].due = Some(due);
        self.owed.push(client);
    }

    /// Takes the scheduler's events: what is owed must come, and nothing else.
    pub(crate) fn collect(&mut self) -> Checked {
        let mut events = std::mem::take(&mut self.events);
        self.scheduler.take_events(&mut events);
        for event in &events.list {
            let index = self.by_id.get(&event.request).copied();
            let first =
                index.ok_or_else(|| format!("an event for the unknown {:?}", event.request))?;
            let index = first + event.index as usize;
            ensure!(
                (event.index as usize) < self.clients[first].num_sequences,
                "an event for answer {} of #{}",
                event.index,
                self.clients[first].label
            );
            self.hash(event.request.0);
            match &event.kind {
                EventKind::Tokens { text, tokens, .. } => {
                    let tokens = &events.tokens[tokens.clone()];
                    for &token in tokens {
                        self.hash(token as u64);
                    }
                    self.clients[index].take(tokens, &events.text[text.clone()])?;
                    self.service
                        .output(self.clients[index].tenant, tokens.len());
                }
                EventKind::Prompt {
                    offset,
                    tokens,
                    scores,
                    ..
                } => {
                    let tokens = &events.tokens[tokens.clone()];
                    let scored = self.scored.get(scores.clone()).unwrap_or_default();
                    self.tally.saw(Sight::PromptPieces);
                    self.tally.add(Sight::PromptScores, scored.len() as u64);
                    self.clients[index].take_prompt(*offset, tokens, scored, index)?;
                }
                EventKind::Ended(end) => self.end(index, &events.ends[*end])?,
            }
        }
        for index in self.owed.drain(..) {
            let client = &mut self.clients[index];
            let due = client.due.take().unwrap_or_default();
            let (label, tokens) = (client.label, due.num_tokens);
            ensure!(tokens == 0, "#{label} lacks {tokens} tokens that are due");
            let end = &due.end;
            ensure!(end.is_none(), "#{label} did not end, due is {end:?}");
        }
        self.events = events;
        Ok(())
    }

    /// A client has ended.
    pub(crate) fn forget(&mut self, index: usize, reason: &EndReason) {
        self.hash(index as u64);
        self.live.retain(|&other| other != index);
        self.running.retain(|&other| other != index);
        self.tenants_left
            .insert(self.clients[index].tenant, self.now);
        match reason {
            EndReason::Failed(Failure::QueueTimeout) => self.tally.saw(Sight::QueueTimeouts),
            EndReason::TimeLimit => self.tally.saw(Sight::TimeLimits),
            EndReason::StopToken(_) => self.tally.saw(Sight::StoppedByToken),
            EndReason::StopString(_) => self.tally.saw(Sight::StoppedByString),
            EndReason::Length => self.tally.saw(Sight::Completed),
            EndReason::Cancelled | EndReason::Failed(_) => {}
        }
    }

    pub(crate) fn hash(&mut self, value: u64) {
        self.trace_hash = mix(self.trace_hash ^ value);
    }
}
