//! The loop: what happens next, anywhere.

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque};

use chairlift_core::{Config, Nanos, Scheduler};
use chairlift_router::{
    ConfigError, Prompt, Router, RouterConfig, Ticket,
    random::{Random, mix},
};
use chairlift_text::TokenTable;

use crate::{
    autoscaler::{Autoscaler, PERIOD},
    checks::check,
    clock::{Clock, Event},
    command::{Command, Context},
    options::Options,
    outcomes::{NEVER, Outcomes},
    replica::Replica,
    roles::{Calls, Message},
    work::Work,
};

mod losses;
mod transfers;

/// A request is sent so often at most.
const MAX_SENT: u32 = 2;

/// Where a replica is in its life.
#[derive(Clone, Debug, PartialEq)]
enum State {
    Off,
    Starting,
    Up,
    /// It ends what it has, and gets no more.
    Draining,
    /// With the requests that it had.
    Lost(Vec<u32>),
}

/// A run of a trace over a fleet.
pub struct Fleet {
    config: Config,
    options: Options,
    work: Work,
    clock: Clock,
    routers: Vec<Router>,
    /// By request: the router that sent it is the request's number modulo their number.
    tickets: Vec<Option<Ticket>>,
    replicas: Vec<Replica>,
    states: Vec<State>,
    /// When each replica is lost next, if it is up then.
    losses: Vec<Nanos>,
    /// Replicas that have something to do, by its time; an entry that is not the replica's own is old.
    busy: BinaryHeap<Reverse<(Nanos, u16)>>,
    due: Vec<Option<Nanos>>,
    /// Requests that arrived while no replica was up.
    unrouted: VecDeque<u32>,
    /// Requests that have not ended.
    num_left: usize,
    random: Random,
    autoscaler: Option<Autoscaler>,
    calls: Option<Calls>,
    now: Nanos,
    outcomes: Outcomes,
    ended: Vec<(Nanos, u32)>,
    messages: Vec<(Nanos, Message)>,
    names: Vec<u64>,
}

impl Fleet {
    /// A fleet before the first request.
    ///
    /// # Errors
    /// Names the first setting that is out of range.
    pub fn new(config: Config, options: Options, work: Work) -> Result<Self, ConfigError> {
        let checked = Scheduler::new(config.clone(), TokenTable::new(&[], &[], &[], false).into());
        checked.map_err(|error| ConfigError(error.to_string()))?;
        check(&config, &options, &work)?;
        let names = config.num_blocks * config.block_size / work.router_tokens();
        let routers = (0..options.num_routers).map(|number| {
            Router::new(RouterConfig {
                routing: options.routing,
                num_replicas: options.num_replicas,
                names_per_replica: names.max(1),
                seed: mix(options.seed.wrapping_add(number as u64)),
            })
        });
        let count = options.num_replicas;
        let num_requests = work.requests.len();
        let mut fleet = Self {
            routers: routers.collect::<Result<_, _>>()?,
            clock: Clock::new(events_of(&work)),
            tickets: (0..num_requests).map(|_| None).collect(),
            replicas: (0..count).map(Replica::new).collect(),
            states: vec![State::Up; count],
            losses: vec![NEVER; count],
            busy: BinaryHeap::new(),
            due: vec![None; count],
            unrouted: VecDeque::new(),
            num_left: num_requests,
            random: Random::new(mix(!options.seed)),
            autoscaler: options
                .autoscale
                .map(|options| Autoscaler::new(options, count)),
            calls: options
                .roles
                .map(|roles| Calls::new(roles, count, num_requests)),
            now: 0,
            outcomes: Outcomes::new(num_requests, count),
            ended: Vec::new(),
            messages: Vec::new(),
            names: Vec::new(),
            config,
            options,
            work,
        };
        fleet.start();
        Ok(fleet)
    }

    /// Handles up to so many events; false when all requests have ended.
    pub fn run(&mut self, num_events: usize) -> bool {
        for _ in 0..num_events {
            if self.num_left == 0 || !self.advance() {
                return false;
            }
        }
        true
    }

    /// What has happened so far.
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// The requests.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// The settings of each replica's scheduler.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The names of all prompts whose requests were admitted and have ended that can be found, and how many were.
    pub fn names_found(&self) -> (u64, u64) {
        let block_size = self.config.block_size;
        let requests = self.outcomes.progress.iter().enumerate();
        let ended = requests.filter(|(_, progress)| progress.ended != NEVER);
        let counts = ended.map(|(index, progress)| {
            let found = self.work.num_found(index, progress.num_cached, block_size);
            (
                self.work.num_findable(index, block_size) as u64,
                found as u64,
            )
        });
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    fn start(&mut self) {
        if let Some(autoscaler) = &self.autoscaler {
            for replica in autoscaler.options.min_replicas..self.options.num_replicas {
                self.states[replica] = State::Off;
                for router in &mut self.routers {
                    router.leave(replica as u16);
                }
            }
            self.clock.at(PERIOD, Event::Scale);
        }
        for replica in 0..self.num_prefill() {
            for router in &mut self.routers {
                router.leave(replica as u16);
            }
        }
        if let Some(interval) = self.options.report_interval {
            self.clock.at(interval, Event::Report);
        }
        for replica in 0..self.options.num_replicas {
            if self.states[replica] == State::Up {
                self.draw_loss(replica as u16);
            }
        }
        self.outcomes.max_replicas = self.num_present();
    }

    /// Lets one thing happen: a replica runs up to the next event outside of it, or that event; false: there is none.
    fn advance(&mut self) -> bool {
        let until = self.clock.next_time();
        while let Some(&Reverse((time, replica))) = self.busy.peek() {
            if self.due[replica as usize] != Some(time) {
                self.busy.pop();
                continue;
            }
            if until.is_some_and(|until| time >= until) {
                break;
            }
            self.busy.pop();
            self.due[replica as usize] = None;
            let mut until = until.unwrap_or(Nanos::MAX);
            if let Some(&Reverse((other, _))) = self.busy.peek()
                && self.calls.is_some()
            {
                // What another replica tells of its step may come before.
                until = until.min(other.max(time + 1));
            }
            self.run_replica(replica, until);
            return true;
        }
        let Some((now, event)) = self.clock.pop() else {
            return false;
        };
        self.outcomes.replica_time += u128::from(now - self.now) * self.num_present() as u128;
        self.now = now;
        self.handle(event);
        true
    }

    fn run_replica(&mut self, replica: u16, until: Nanos) {
        let mut context = Context {
            config: &self.config,
            work: &self.work,
            step_time: &self.options.step_time,
            roles: self.options.roles.as_ref(),
            outcomes: &mut self.outcomes,
            ended: &mut self.ended,
            messages: &mut self.messages,
        };
        self.replicas[replica as usize].advance(until, &mut context);
        for (time, index) in self.ended.drain(..) {
            let num_sent = self.outcomes.progress[index as usize].num_sent;
            let event = Event::Ended { index, num_sent };
            self.clock.at(time + self.options.lag, event);
        }
        let mut messages = std::mem::take(&mut self.messages);
        for (time, message) in messages.drain(..) {
            self.deliver(replica, time, message);
        }
        self.messages = messages;
        self.note_due(replica);
    }

    /// Lists when a replica has something to do.
    fn note_due(&mut self, replica: u16) {
        let due = self.replicas[replica as usize].next_time();
        if due != self.due[replica as usize] {
            self.due[replica as usize] = due;
            self.busy.extend(due.map(|time| Reverse((time, replica))));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival { index } => self.send(index),
            Event::Cancel { index } => self.cancel(index),
            Event::Flush => {
                for replica in 0..self.options.num_replicas as u16 {
                    self.tell(replica, Command::Flush);
                }
            }
            Event::Ended { index, num_sent } => self.end(index, num_sent),
            Event::Tell { replica, command } => self.tell(replica, command),
            Event::CallOver { index } => self.end_call(index),
            Event::Late { index, replica } => self.late(index, replica),
            Event::Report => self.report(),
            Event::Lost { replica } => self.lose(replica),
            Event::Detected { replica } => self.detect(replica),
            Event::Joined { replica } => self.join(replica),
            Event::Scale => self.scale(),
        }
    }

    fn router(&mut self, index: u32) -> &mut Router {
        let number = index as usize % self.routers.len();
        &mut self.routers[number]
    }

    /// Routes a request, and sends it to its replica.
    fn send(&mut self, index: u32) {
        self.work.router_names(index as usize, &mut self.names);
        let prompt = Prompt {
            names: &self.names,
            tokens_per_name: self.work.router_tokens(),
            num_tokens: self.work.requests[index as usize].num_prompt,
        };
        let number = index as usize % self.routers.len();
        let Some(ticket) = self.routers[number].route(prompt) else {
            self.unrouted.push_back(index);
            return;
        };
        let replica = ticket.replica();
        let progress = &mut self.outcomes.progress[index as usize];
        (progress.num_sent, progress.replica) = (progress.num_sent + 1, replica);
        self.tickets[index as usize] = Some(ticket);
        self.tell(replica, Command::Add(index));
    }

    fn tell(&mut self, replica: u16, command: Command) {
        let time = self.now + self.options.lag;
        if let State::Lost(requests) = &mut self.states[replica as usize] {
            // Nothing is there to take it; the router does not know that yet.
            if let Command::Add(index) = command {
                requests.push(index);
            }
            return;
        }
        self.replicas[replica as usize].tell(time, command);
        self.note_due(replica);
    }

    fn cancel(&mut self, index: u32) {
        if let Some(ticket) = &self.tickets[index as usize] {
            self.tell(ticket.replica(), Command::Cancel(index));
        }
    }

    fn end(&mut self, index: u32, num_sent: u32) {
        if self.outcomes.progress[index as usize].num_sent != num_sent {
            return;
        }
        let slot = &mut self.tickets[index as usize];
        let Some(replica) = slot.as_ref().map(Ticket::replica) else {
            return;
        };
        if matches!(&self.states[replica as usize], State::Lost(requests) if requests.contains(&index))
        {
            // The step that would have ended it was lost with its replica.
            return;
        }
        let ticket = slot.take().expect("invariant: it was there");
        self.router(index).end(ticket);
        self.abort_call(index);
        self.num_left -= 1;
        if self.states[replica as usize] == State::Draining && self.is_empty(replica) {
            self.states[replica as usize] = State::Off;
        }
    }

    fn is_empty(&self, replica: u16) -> bool {
        let counts = self
            .routers
            .iter()
            .map(|router| router.num_in_flight(replica));
        counts.sum::<u32>() == 0
    }

    /// The first replicas, among which the router does not choose.
    fn num_prefill(&self) -> usize {
        self.options.roles.map_or(0, |roles| roles.num_prefill)
    }

    fn report(&mut self) {
        for replica in self.num_prefill()..self.options.num_replicas {
            if self.states[replica] == State::Up {
                let count = self.replicas[replica].num_requests() as u32;
                for router in &mut self.routers {
                    router.report(replica as u16, count);
                }
            }
        }
        let interval = self.options.report_interval.unwrap_or(NEVER - self.now);
        self.clock.at(self.now + interval, Event::Report);
    }

    fn num_present(&self) -> usize {
        let is_present = |state: &&State| !matches!(state, State::Off | State::Draining);
        self.states.iter().filter(is_present).count()
    }

    fn scale(&mut self) {
        self.clock.at(self.now + PERIOD, Event::Scale);
        let num_in_flight = self.tickets_in_flight() + self.unrouted.len();
        let num_present = self.num_present();
        let Some(autoscaler) = &mut self.autoscaler else {
            return;
        };
        let start = autoscaler.options.start;
        let wanted = autoscaler.wanted(self.now, num_present, num_in_flight);
        for replica in 0..self.options.num_replicas {
            if self.num_present() < wanted && self.states[replica] == State::Off {
                self.states[replica] = State::Starting;
                let replica = replica as u16;
                self.clock.at(self.now + start, Event::Joined { replica });
            }
        }
        for replica in (0..self.options.num_replicas as u16).rev() {
            if self.num_present() > wanted && self.states[replica as usize] == State::Up {
                for router in &mut self.routers {
                    router.leave(replica);
                }
                let is_empty = self.is_empty(replica);
                self.states[replica as usize] = if is_empty {
                    State::Off
                } else {
                    State::Draining
                };
            }
        }
        self.outcomes.max_replicas = self.outcomes.max_replicas.max(self.num_present());
    }

    fn tickets_in_flight(&self) -> usize {
        let replicas = 0..self.options.num_replicas as u16;
        let counts = replicas.flat_map(|replica| {
            let routers = self.routers.iter();
            routers.map(move |router| router.num_in_flight(replica) as usize)
        });
        counts.sum()
    }
}

/// What happens by the trace alone.
fn events_of(work: &Work) -> Vec<(Nanos, Event)> {
    let requests = || (0_u32..).zip(&work.requests);
    let arrivals = requests().map(|(index, request)| (request.arrival, Event::Arrival { index }));
    let cancels = requests().filter_map(|(index, request)| {
        let time = request.cancelled?;
        Some((time, Event::Cancel { index }))
    });
    let flushes = work.flushes.iter().map(|&time| (time, Event::Flush));
    arrivals.chain(cancels).chain(flushes).collect()
}
