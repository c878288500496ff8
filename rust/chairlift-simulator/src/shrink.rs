//! From a failure of thousands of events to one that a person reads: delta debugging (Zeller and Hildebrandt, TSE '02)
//! over the recorded list, then smaller requests.

use std::sync::Arc;

use chairlift_core::text::TokenTable;

use crate::{
    event::Event,
    run::{Failed, replay},
    workload::Arrival,
};

/// Replays that shrinking may spend.
const MAX_REPLAYS: usize = 20_000;

struct Shrinker<'a> {
    failed: Failed,
    tokens: &'a Arc<TokenTable>,
    replays_left: usize,
}

/// Finds a short list of events that fails too, perhaps with another sentence.
pub(crate) fn shrink(failed: Failed, tokens: &Arc<TokenTable>) -> Failed {
    let mut shrinker = Shrinker {
        failed,
        tokens,
        replays_left: MAX_REPLAYS,
    };
    shrinker.failed.scenario.check_every = 1;
    loop {
        let before = shrinker.failed.events.len();
        shrinker.remove_events();
        shrinker.simplify_requests();
        if shrinker.failed.events.len() == before {
            return shrinker.failed;
        }
    }
}

impl Shrinker<'_> {
    /// Keeps `events` if they fail; what follows the failure is dropped.
    fn try_events(&mut self, events: &[Event]) -> bool {
        if self.replays_left == 0 {
            return false;
        }
        self.replays_left -= 1;
        let mut happened = 0;
        let result = replay(&self.failed.scenario, events, self.tokens, &mut |_, _| {
            happened += 1;
        });
        let Err(message) = result else { return false };
        self.failed.message = message;
        self.failed.events = events[..events.len().min(happened)].to_vec();
        true
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

/// Each makes a request plainer, or leaves it.
const CHANGES: &[fn(&mut Arrival)] = &[
    |arrival| arrival.stops.clear(),
    |arrival| arrival.queue_patience = None,
    |arrival| arrival.patience = None,
    |arrival| arrival.min_tokens = 0,
    |arrival| arrival.detokenize = false,
    |arrival| arrival.include_stop = false,
    |arrival| (arrival.cache_read, arrival.cache_write) = (true, true),
    |arrival| (arrival.tenant, arrival.salt) = (0, 0),
    |arrival| arrival.shared = 0,
    |arrival| arrival.max_tokens = arrival.max_tokens.div_ceil(2),
    |arrival| arrival.max_tokens = (arrival.max_tokens - 1).max(1),
    |arrival| arrival.num_prompt = arrival.num_prompt.div_ceil(2),
    |arrival| arrival.num_prompt = (arrival.num_prompt - 1).max(1),
];
