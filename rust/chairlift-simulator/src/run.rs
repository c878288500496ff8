//! A run: events and faults first, then no more faults, and everything must come to its end.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use chairlift_text::TokenTable;

use crate::{
    alteration::Alteration,
    event::{Event, Outcome},
    faults::Chooser,
    mirror::Mirror,
    panics,
    scenario::Scenario,
    tally::{Sight, Tally},
    world::{Checked, World, ensure},
};

/// Events per step at which a run counts as long enough: most events of an idle scenario are no steps.
const EVENTS_PER_STEP: u64 = 8;

/// A run without a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    pub tally: Tally,
    /// Equal for equal runs: every plan and every event is in it.
    pub trace_hash: u64,
}

/// A run that failed, and how to have it again.
#[derive(Clone, Debug)]
pub struct Failed {
    pub scenario: Scenario,
    pub message: String,
    pub(crate) events: Vec<Event>,
    /// Steps until it failed.
    pub steps: u64,
}

/// Runs the events that the chooser makes for a scenario; the recorded list replays them.
pub(crate) fn explore(
    scenario: &Scenario,
    mut chooser: Chooser,
    tokens: &Arc<TokenTable>,
) -> (Result<Passed, Failed>, Vec<Event>) {
    let mut recorded = Vec::new();
    let mut steps = 0;
    let run = || -> Checked<Passed> {
        let mut world = World::new(scenario, tokens)?;
        let limit = scenario.num_steps as u64;
        while world.tally.steps() < limit
            && world.tally.get(Sight::Events) < EVENTS_PER_STEP * limit
            && !chooser.is_spent()
        {
            let event = chooser.next(&world);
            recorded.push(event.clone());
            let applied = world.apply(&event);
            steps = world.tally.steps();
            applied?;
        }
        drain(&mut world, &mut |_, _| ())?;
        Ok(pass(world))
    };
    let result = guarded(run).map_err(|message| Failed {
        scenario: scenario.clone(),
        message,
        events: recorded.clone(),
        steps,
    });
    (result, recorded)
}

/// Runs recorded events. `see` gets each event and what it did.
pub(crate) fn replay(
    scenario: &Scenario,
    events: &[Event],
    tokens: &Arc<TokenTable>,
    see: &mut dyn FnMut(&Event, Option<&str>),
) -> Result<Passed, String> {
    guarded(|| {
        let mut world = World::new(scenario, tokens)?;
        world.takes_notes = true;
        for event in events {
            let applied = world.apply(event);
            see(event, world.note.as_deref());
            applied?;
        }
        drain(&mut world, see)?;
        Ok(pass(world))
    })
}

fn pass(world: World) -> Passed {
    Passed {
        trace_hash: world.trace_hash,
        tally: world.tally,
    }
}

/// The liveness phase: no more arrivals and faults. Every step brings the oldest running request at least one token
/// nearer to its end, so the tokens of all requests bound the steps; the pool ends as it began.
fn drain(world: &mut World, see: &mut dyn FnMut(&Event, Option<&str>)) -> Checked {
    let mut happen = |world: &mut World, event: Event| {
        let applied = world.apply(&event);
        see(&event, world.note.as_deref());
        applied
    };
    happen(world, Event::Flush)?;
    // Requests that may go on come to their end beside suspended ones, however many these are; then those go on, too.
    finish(world, &mut happen)?;
    for index in world.live.clone() {
        let label = world.clients[index].label;
        // Of two clients one gives as much as there is, the other has gone and gives no more.
        let credit = match label % 2 {
            0 => Alteration::Credit(u64::MAX),
            _ => Alteration::LastCredit(0),
        };
        for alteration in [Alteration::Pause(false), credit] {
            happen(world, Event::Change(label, alteration))?;
        }
    }
    happen(world, Event::Flush)?;
    finish(world, &mut happen)?;
    ensure!(
        world.live.is_empty(),
        "{} requests never end",
        world.live.len()
    );
    happen(world, Event::Evict(usize::MAX))?;
    world.check_deep()?;
    ensure!(
        world.mirror == Mirror::default(),
        "events tell of blocks after all were evicted"
    );
    let load = world.scheduler.load();
    ensure!(
        load.num_cached_blocks == 0,
        "{} blocks are cached after all were evicted",
        load.num_cached_blocks
    );
    ensure!(
        load.num_free_blocks == load.num_blocks,
        "{} blocks are free at the end",
        load.num_free_blocks
    );
    Ok(())
}

/// Runs until only suspended requests are left, or too long.
fn finish(world: &mut World, happen: &mut dyn FnMut(&mut World, Event) -> Checked) -> Checked {
    let lengths = world.live.iter().map(|&index| {
        let answer = &world.clients[index].answer;
        answer.num_prompt + answer.limit
    });
    let bound =
        (lengths.sum::<usize>() + world.live.len() + 2) * world.scenario.config.steps_in_flight;
    let is_over = |world: &World| {
        let mut live = world.live.iter();
        live.all(|&index| world.clients[index].is_suspended())
    };
    let mut rounds = 0;
    while !is_over(world) || !world.in_flight_steps.is_empty() {
        ensure!(
            rounds <= bound,
            "{} requests live after {bound} steps without a fault",
            world.live.len()
        );
        rounds += 1;
        happen(world, Event::Schedule)?;
        if world.in_flight_steps.len() == world.scenario.config.steps_in_flight
            || is_over(world)
            || rounds % 2 == 0
        {
            happen(world, Event::Complete(Outcome::Sampled))?;
        }
    }
    Ok(())
}

/// A panic of the scheduler is a failure like any other.
fn guarded<T>(run: impl FnOnce() -> Checked<T>) -> Checked<T> {
    let _quiet = panics::quiet();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panics::last()))
}

impl Failed {
    /// Events up to the failure.
    pub fn num_events(&self) -> usize {
        self.events.len()
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self
            .scenario
            .seed
            .map_or("a run from bytes".into(), |seed| format!("seed {seed}"));
        write!(
            f,
            "{name} fails after {} events and {} steps: {}",
            self.events.len(),
            self.steps,
            self.message
        )?;
        let Some(seed) = self.scenario.seed else {
            return Ok(());
        };
        write!(
            f,
            "\nagain: cargo run --release -p chairlift-simulator -- --seed {seed} --trace"
        )
    }
}
