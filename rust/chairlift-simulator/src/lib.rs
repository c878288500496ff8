//! The hunt for scheduler bugs: the real scheduler, block pool and prefix cache under drawn work and faults.
//!
//! One `u64` seed draws a configuration, traffic and a mix of faults (as `FoundationDB` and `TigerBeetle` do); a fake
//! model whose every KV slot is a hash of all that precedes it answers through the block tables; an oracle knows each
//! answer without a cache. Whatever goes wrong is one sentence, a seed that has it again, and a short list of events.
//!
//! | module | what it is |
//! | --- | --- |
//! | `scenario`, `workload`, `faults` | what a seed draws: settings, requests, the next event |
//! | `event`, `alteration` | an event as a value, and the change of a request; a run is a list of events |
//! | `world`, `step`, `change`, `client` | the scheduler, the device and the clients; what each event owes to which client |
//! | `device`, `oracle`, `text` | the fake model, and its answers without a cache and without deltas |
//! | `batch`, `conserve`, `check` | the invariants, seen from outside |
//! | `drafts` | guesses of an answer's next tokens |
//! | `sequence_group` | several sequences of one request |
//! | `turns` | the order of admission, in pairs |
//! | `service`, `fair_share`, `row_usage` | fairness between tenants, as bounds |
//! | `yielding`, `victims` | whose rows and blocks go |
//! | `swap` | blocks of the preempted in host memory |
//! | `mirror` | what a consumer of block events knows of the prefix cache |
//! | `explain` | why a request waits, as explained and as it is |
//! | `run`, `shrink` | a run and its liveness phase; a failure made readable |
#![forbid(unsafe_code)]

mod alteration;
mod batch;
mod block_events;
mod change;
mod check;
mod client;
mod conserve;
mod device;
mod drafts;
mod event;
mod explain;
mod fair_share;
mod faults;
mod inputs;
mod loading;
mod mirror;
mod oracle;
mod panics;
mod prompts;
mod random;
mod row_usage;
mod run;
mod scenario;
mod sequence_group;
mod service;
mod shrink;
mod states;
mod step;
mod store;
mod swap;
mod tally;
mod text;
mod turns;
mod victims;
mod workload;
mod world;
mod yielding;

use std::sync::Arc;

use chairlift_text::TokenTable;

use event::{Event, Outcome};
use faults::Chooser;
use random::Random;
pub use run::{Failed, Passed};
pub use scenario::Scenario;
pub use tally::Tally;

/// Runs seeds; cheap to keep, one per thread.
pub struct Simulator {
    tokens: Arc<TokenTable>,
}

impl Default for Simulator {
    fn default() -> Self {
        Self {
            tokens: Arc::new(text::token_table()),
        }
    }
}

impl Simulator {
    /// Runs one seed.
    ///
    /// # Errors
    /// The failure as it happened; [`Simulator::shrink`] makes it short.
    pub fn run(&self, seed: u64) -> Result<Passed, Box<Failed>> {
        let scenario = Scenario::draw(seed);
        run::explore(&scenario, Chooser::from_seed(seed), &self.tokens)
            .0
            .map_err(Box::new)
    }

    /// Runs what bytes say: they decide the scenario and the events until they are spent.
    ///
    /// # Errors
    /// As [`Simulator::run`].
    pub fn run_bytes(&self, bytes: &[u8]) -> Result<Passed, Box<Failed>> {
        let mut random = Random::from_bytes(bytes);
        let scenario = Scenario::draw_from(&mut random);
        run::explore(&scenario, Chooser::new(random), &self.tokens)
            .0
            .map_err(Box::new)
    }

    /// Runs one seed, and its recorded events again: the same events must make the same run.
    ///
    /// # Errors
    /// As [`Simulator::run`].
    pub fn run_twice(&self, seed: u64) -> Result<Passed, Box<Failed>> {
        let scenario = Scenario::draw(seed);
        let (result, events) = run::explore(&scenario, Chooser::from_seed(seed), &self.tokens);
        let passed = result?;
        let again = run::replay(&scenario, &events, &self.tokens, &mut |_, _| ());
        if again.as_ref() == Ok(&passed) {
            return Ok(passed);
        }
        let message = format!("the second run of the same events differs: {again:?}");
        Err(Box::new(Failed {
            scenario,
            message,
            events,
            steps: passed.tally.steps(),
        }))
    }

    /// Makes a failure as short as it gets.
    pub fn shrink(&self, failed: Failed) -> Failed {
        shrink::shrink(failed, &self.tokens)
    }

    /// The events of a run with what they did, one a line; a step and its plain completion share theirs.
    pub fn describe(&self, failed: &Failed) -> String {
        let mut lines = vec![format!("{:?}", failed.scenario.config())];
        let mut see = |event: &Event, note: Option<&str>| {
            let completes = *event == Event::Complete(Outcome::Sampled);
            match lines.last_mut() {
                Some(step) if completes && step.starts_with("  schedule") => {
                    step.push_str("; complete");
                }
                _ => lines.push(
                    note.map_or_else(|| format!("  {event}"), |note| format!("  {event}: {note}")),
                ),
            }
        };
        let result = run::replay(&failed.scenario, &failed.events, &self.tokens, &mut see);
        lines.push(result.map_or_else(
            |message| format!("  => {message}"),
            |_| "  => passes".into(),
        ));
        lines.join("\n")
    }

    /// All events of a seed with what they did.
    pub fn trace(&self, seed: u64) -> String {
        let scenario = Scenario::draw(seed);
        let events = run::explore(&scenario, Chooser::from_seed(seed), &self.tokens).1;
        self.describe(&Failed {
            scenario,
            message: String::new(),
            events,
            steps: 0,
        })
    }
}
