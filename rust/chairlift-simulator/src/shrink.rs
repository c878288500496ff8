//! From a failure of thousands of events to one that a person reads: delta debugging (Zeller and Hildebrandt, TSE '02)
//! over the recorded list, then smaller requests.

use std::sync::Arc;

use chairlift_core::{Config, PromptOptions, policy::Policy};
use chairlift_text::TokenTable;

use crate::{
    event::Event,
    run::{Failed, replay},
    scenario::Scenario,
    workload::Arrival,
    world::World,
};

/// Events that shrinking may replay; each is followed by every check there is.
const MAX_EVENTS: usize = 1_000_000;

struct Shrinker<'a> {
    failed: Failed,
    tokens: &'a Arc<TokenTable>,
    events_left: usize,
}

/// Finds a short list of events that fails too, perhaps with another sentence.
///
/// A large pool takes long to check, so checks stay as rare as they were until the list is short.
pub(crate) fn shrink(failed: Failed, tokens: &Arc<TokenTable>) -> Failed {
    let mut shrinker = Shrinker {
        failed,
        tokens,
        events_left: MAX_EVENTS,
    };
    shrinker.shrink();
    if shrinker.failed.scenario.check_every > 1 {
        shrinker.failed.scenario.check_every = 1;
        shrinker.shrink();
    }
    shrinker.failed
}

impl Shrinker<'_> {
    /// Goes on as long as fewer events are left.
    fn shrink(&mut self) {
        loop {
            let before = self.failed.events.len();
            self.remove_events();
            self.simplify_requests();
            self.simplify_settings();
            if self.failed.events.len() == before {
                return;
            }
        }
    }

    fn try_events(&mut self, events: &[Event]) -> bool {
        let scenario = self.failed.scenario.clone();
        self.attempt(scenario, events)
    }

    /// Keeps scenario and events if they fail; events after the failure are dropped.
    fn attempt(&mut self, scenario: Scenario, events: &[Event]) -> bool {
        if self.events_left < events.len() {
            return false;
        }
        self.events_left -= events.len();
        let mut happened = 0;
        let result = replay(&scenario, events, self.tokens, &mut |_, _| {
            happened += 1;
        });
        let Err(message) = result else { return false };
        self.failed.message = message;
        self.failed.events = events[..events.len().min(happened)].to_vec();
        self.failed.scenario = scenario;
        true
    }

    /// Takes plainer settings as long as they are valid and the run fails.
    fn simplify_settings(&mut self) {
        for change in SETTINGS {
            loop {
                let mut scenario = self.failed.scenario.clone();
                change(&mut scenario.config);
                let is_same = format!("{:?}", scenario.config)
                    == format!("{:?}", self.failed.scenario.config);
                let is_valid = World::new(&scenario, self.tokens).is_ok();
                let events = self.failed.events.clone();
                if is_same || !is_valid || !self.attempt(scenario, &events) {
                    break;
                }
            }
        }
    }

    /// Leaves out ever shorter runs of events.
    fn remove_events(&mut self) {
        let events = self.failed.events.clone();
        self.try_events(&events);
        let mut length = self.failed.events.len().div_ceil(2);
        while length > 0 {
            let mut end = self.failed.events.len();
            while end > 0 {
                let start = end.saturating_sub(length);
                let mut fewer = self.failed.events.clone();
                fewer.drain(start..end);
                self.try_events(&fewer);
                end = start.min(self.failed.events.len());
            }
            length /= 2;
        }
    }

    /// Makes each request plainer and shorter as long as the run fails.
    fn simplify_requests(&mut self) {
        let mut at = 0;
        while at < self.failed.events.len() {
            for change in CHANGES {
                while let Event::Add(arrival) = &self.failed.events[at] {
                    let mut plainer = arrival.clone();
                    change(&mut plainer);
                    if plainer == *arrival {
                        break;
                    }
                    let mut events = self.failed.events.clone();
                    events[at] = Event::Add(plainer);
                    if !self.try_events(&events) || at >= self.failed.events.len() {
                        break;
                    }
                }
                if at >= self.failed.events.len() {
                    return;
                }
            }
            at += 1;
        }
    }
}

/// Each makes the settings plainer, or leaves them.
const SETTINGS: &[fn(&mut Config)] = &[
    |config| config.policy = Policy::Continuous,
    |config| config.prefix_cache = false,
    |config| config.state_snapshots = None,
    |config| config.state_snapshots = config.state_snapshots.map(|_| 1),
    |config| config.num_host_blocks = 0,
    |config| config.swap_block_time = 0,
    |config| config.steps_in_flight = 1,
    |config| config.kv_groups.truncate(1),
    |config| {
        let groups = config.kv_groups.iter_mut();
        groups.for_each(|group| group.window = None);
    },
    |config| config.max_model_len = config.max_model_len.div_ceil(2),
    |config| config.num_blocks = config.num_blocks.div_ceil(2),
    |config| config.num_blocks -= 1,
    |config| config.max_num_seqs = config.max_num_seqs.div_ceil(2),
    // A prompt in one step is shorter to read than in chunks.
    |config| config.max_num_batched_tokens = config.max_num_batched_tokens.max(512),
    |config| config.block_size = config.block_size.div_ceil(2),
    |config| config.hash_key = [0; 32],
];

/// Each makes a request plainer, or leaves it.
const CHANGES: &[fn(&mut Arrival)] = &[
    |arrival| arrival.stops.clear(),
    |arrival| arrival.queue_patience = None,
    |arrival| arrival.first_token_patience = None,
    |arrival| arrival.turn_delay = 0,
    |arrival| arrival.patience = None,
    |arrival| arrival.credit = None,
    |arrival| arrival.priority = 0,
    |arrival| arrival.num_sequences = arrival.num_sequences.div_ceil(2),
    |arrival| arrival.num_sequences = (arrival.num_sequences - 1).max(1),
    |arrival| arrival.min_tokens = 0,
    |arrival| arrival.detokenize = false,
    |arrival| arrival.include_stop = false,
    |arrival| (arrival.cache_read, arrival.cache_write) = (true, true),
    |arrival| arrival.prompt_output = PromptOptions::default(),
    |arrival| (arrival.tenant, arrival.salt) = (0, 0),
    |arrival| arrival.adapter = (0, 0),
    |arrival| arrival.shared = 0,
    // Tokens of the prompt take one step, those of the output one each.
    |arrival| {
        arrival.num_prompt += arrival.max_tokens / 2;
        arrival.max_tokens -= arrival.max_tokens / 2;
    },
    |arrival| arrival.max_tokens = arrival.max_tokens.div_ceil(2),
    |arrival| arrival.max_tokens = (arrival.max_tokens - 1).max(1),
    |arrival| arrival.num_prompt = arrival.num_prompt.div_ceil(2),
    |arrival| arrival.num_prompt = (arrival.num_prompt - 1).max(1),
];
