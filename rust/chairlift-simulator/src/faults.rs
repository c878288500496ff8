//! Draws the next event: traffic, progress, and faults aimed at the states where they hurt.

use chairlift_core::{
    events::{EndReason, Failure},
    scheduler::Next,
};

use crate::{
    alteration::Alteration,
    client::{Client, State},
    drafts,
    event::{Event, Outcome},
    random::{Random, Rate},
    workload::{Arrival, Flaw, Label},
    world::World,
};

/// The source of a run's events.
pub(crate) struct Chooser {
    random: Random,
    num_arrivals: Label,
    /// Requests still to arrive in the current burst.
    burst: usize,
}

impl Chooser {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            num_arrivals: 0,
            burst: 0,
        }
    }

    pub(crate) fn from_seed(seed: u64) -> Self {
        Self::new(Random::new(seed ^ 0xE0E0_E0E0))
    }

    /// Nothing is left to decide with.
    pub(crate) fn is_spent(&self) -> bool {
        self.random.is_spent()
    }

    pub(crate) fn next(&mut self, world: &World) -> Event {
        let (traffic, faults) = (&world.scenario.traffic, &world.scenario.faults);
        let random = &mut self.random;
        // Of requests that a full queue refuses, a few are enough.
        let is_full =
            world.live.len() >= world.running.len() + world.scenario.config.max_queued_requests;
        if self.burst == 0 && random.chance(traffic.arrivals) && !(is_full && random.chance(896)) {
            self.burst = random.between(1, traffic.max_burst);
        }
        if self.burst > 0 {
            self.burst -= 1;
            return self.arrival(world);
        }
        if random.chance(faults.abort) {
            return self.abort(world);
        }
        if random.chance(faults.change) {
            return self.change(world);
        }
        if random.chance(faults.draft)
            && let Some(event) = self.draft(world)
        {
            return event;
        }
        let random = &mut self.random;
        if random.chance(faults.evict) {
            return Event::Evict(random.magnitude(1, 64));
        }
        if random.chance(faults.load) && !world.live.is_empty() {
            let index = random.pick(&world.live);
            return Event::Load(world.clients[index].label);
        }
        if random.chance(faults.flush) {
            return Event::Flush;
        }
        if random.chance(faults.clock_jump) {
            // Up to a minute, which is some levels of priority.
            let by = random.magnitude(1, 1 << 36) as i64;
            return Event::Clock(if random.chance(256) { -by.min(64) } else { by });
        }
        let in_flight = world.in_flight_steps.len();
        let may_plan = in_flight < world.scenario.config.steps_in_flight;
        let is_late = in_flight > 0 && random.chance(faults.late);
        if in_flight == 0 || (may_plan && (is_late || random.chance(768))) {
            return self.time_passes(world).unwrap_or(Event::Schedule);
        }
        Event::Complete(self.outcome(world))
    }

    /// Between steps a little; where the scheduler is idle up to its next wake-up, or until a request arrives.
    fn time_passes(&mut self, world: &World) -> Option<Event> {
        let random = &mut self.random;
        let Some(Next::Idle { wake_at }) = world.idle else {
            return random
                .chance(64)
                .then(|| Event::Clock(random.magnitude(1, 256) as i64));
        };
        let has_suspended = world
            .live
            .iter()
            .any(|&index| world.clients[index].is_suspended());
        if has_suspended && random.chance(256) {
            return Some(self.change(world));
        }
        match wake_at {
            Some(time) if time > world.now && random.chance(512) => {
                Some(Event::Clock((time - world.now) as i64))
            }
            _ if random.chance(768) => Some(self.arrival(world)),
            _ => None,
        }
    }

    /// A suspended request or any, ended and unknown ones included.
    fn change(&mut self, world: &World) -> Event {
        let random = &mut self.random;
        let mut found = world.live.clone();
        if random.chance(128) {
            // New stops may begin in text that waits for the old ones.
            found.retain(|&index| world.clients[index].holds_text());
        } else if random.chance(512) {
            found.retain(|&index| world.clients[index].is_suspended());
        }
        let (client, label) = self.some_request(world, &found, 32);
        let random = &mut self.random;
        let max_output = world.scenario.traffic.max_output;
        Event::Change(label, Alteration::draw(random, client, max_output))
    }

    /// One of those found; now and then, or if there are none, a label that may be of no request.
    fn some_request<'a>(
        &mut self,
        world: &'a World,
        found: &[usize],
        unknown: Rate,
    ) -> (Option<&'a Client>, Label) {
        let random = &mut self.random;
        if found.is_empty() || random.chance(unknown) {
            return (None, random.below(self.num_arrivals as usize + 2) as Label);
        }
        let client = &world.clients[found[random.below(found.len())]];
        (Some(client), client.label)
    }

    /// For a request that decodes and has none, if there is one; now and then for any.
    fn draft(&mut self, world: &World) -> Option<Event> {
        let random = &mut self.random;
        let mut found = world.live.clone();
        let is_any = random.chance(32);
        if !is_any {
            found.retain(|&index| {
                let client = &world.clients[index];
                client.state == State::Running
                    && client.in_flight == 0
                    && client.drafts.is_empty()
                    && client.num_output > 0
                    && client.num_pending() == 1
            });
        }
        if found.is_empty() && !is_any {
            return None;
        }
        let (client, label) = self.some_request(world, &found, 16);
        let random = &mut self.random;
        let tokens = drafts::draw(random, client, world.scenario.config.vocab_size);
        let answer = client.map_or(0, |client| client.index);
        Some(Event::Draft(label, answer, tokens))
    }

    fn arrival(&mut self, world: &World) -> Event {
        let random = &mut self.random;
        let mut arrival = Arrival::draw(random, &world.scenario.traffic, self.num_arrivals);
        if random.chance(world.scenario.faults.bad_request) {
            let flaws = [
                Flaw::EmptyPrompt,
                Flaw::UnknownToken,
                Flaw::NoOutput,
                Flaw::MinAboveMax,
                Flaw::TooManyAnswers,
                Flaw::TooLong,
            ];
            arrival.flaw = Some(random.pick(&flaws));
        }
        self.num_arrivals += 1;
        Event::Add(Box::new(arrival))
    }

    fn outcome(&mut self, world: &World) -> Outcome {
        let faults = &world.scenario.faults;
        let random = &mut self.random;
        if random.chance(faults.wrong_update) {
            return Outcome::Refused;
        }
        if random.chance(faults.fail) {
            return Outcome::Failed(self.some_of_the_step(world));
        }
        if random.chance(faults.not_finite) {
            return Outcome::NotFinite(self.some_of_the_step(world));
        }
        Outcome::Sampled
    }

    /// Requests of the oldest step in flight: none, one, some or all, and at times one that is not in it.
    fn some_of_the_step(&mut self, world: &World) -> Vec<Label> {
        let random = &mut self.random;
        let rate = random.pick(&[0, 128, 512, 1024]);
        let clients = world
            .in_flight_steps
            .front()
            .map_or(&[][..], |flight| &flight.clients);
        let mut labels: Vec<_> = clients
            .iter()
            .map(|&index| world.clients[index].label)
            .collect();
        labels.retain(|_| random.chance(rate));
        if random.chance(64) {
            labels.push(random.below(self.num_arrivals as usize + 1) as Label);
        }
        labels
    }

    /// A request in a drawn state, or any, ended and unknown ones included.
    fn abort(&mut self, world: &World) -> Event {
        let random = &mut self.random;
        let wanted: fn(&Client) -> bool = match random.below(6) {
            0 => |client| client.state == State::Waiting && !client.joined,
            1 => |client| client.is_preempted(),
            2 => |client| client.state == State::Running && client.num_sampled == 0,
            3 => |client| client.in_flight > 0 && client.num_output + 1 == client.answer.num_output,
            4 => |client| client.state == State::Running,
            _ => |_| false,
        };
        let found: Vec<_> = world
            .live
            .iter()
            .filter(|&&index| wanted(&world.clients[index]))
            .collect();
        let label = if found.is_empty() {
            random.below(self.num_arrivals as usize + 2) as Label
        } else {
            world.clients[*found[random.below(found.len())]].label
        };
        let reasons = [
            EndReason::Cancelled,
            EndReason::Cancelled,
            EndReason::Failed(Failure::Draining),
        ];
        Event::Abort(label, reasons[random.below(reasons.len())].clone())
    }
}
