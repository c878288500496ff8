//! What is kept from draw to draw: of each sequence its options, and its tokens where these need them.

use crate::{
    isa::dispatch::dispatch,
    sampling::{
        bans::{Bans, NoEnd},
        dry::{Dry, SequenceBreakers},
        filters::{Filters, TopNSigma},
        history::{Count, History},
        penalties::{Penalties, bias},
    },
};
use parking_lot::{Mutex, MutexGuard};

/// What a request asks for beside temperature, top-k, top-p and min-p.
#[derive(Debug, Default)]
pub struct DrawOptions {
    pub bans: Bans,
    pub no_end: NoEnd,
    pub bias: Vec<(i32, f32)>,
    pub penalties: Penalties,
    pub dry: Option<Dry>,
    pub filters: Filters,
    /// The likeliest tokens that are reported with each draw.
    pub num_candidates: usize,
}

impl DrawOptions {
    fn need_history(&self) -> bool {
        self.bans.need_history() || !self.penalties.are_off() || self.dry.is_some()
    }
}

/// The state of one sequence.
#[derive(Debug)]
pub struct SequenceState {
    options: DrawOptions,
    history: Option<History>,
    breakers_seen: SequenceBreakers,
}

impl SequenceState {
    /// The state of a sequence before its first draw.
    pub fn new(options: DrawOptions, prompt: Vec<i32>) -> Self {
        let history = options.need_history().then(|| History::new(prompt));
        Self {
            options,
            history,
            breakers_seen: SequenceBreakers::default(),
        }
    }

    /// Replaces the ends that are banned before a position.
    pub fn set_no_end(&mut self, no_end: NoEnd) {
        self.options.no_end = no_end;
    }

    /// Whether the options change the logits, or the filters, of the token at a position.
    pub(super) fn changes(&self, position: usize) -> bool {
        let options = &self.options;
        self.history.is_some()
            || options.no_end.applies(position)
            || !options.bans.are_empty()
            || !options.bias.is_empty()
            || options.filters.top_n_sigma > 0.0
            || options.filters.narrow()
    }

    /// Changes the logits of the token at a position as the options say, up to top-n-sigma.
    pub(super) fn apply(&mut self, logits: &mut [f32], position: usize) {
        let DrawOptions {
            bans,
            no_end,
            bias: biases,
            penalties,
            dry,
            filters,
            ..
        } = &self.options;
        let tokens = self
            .history
            .as_ref()
            .map(|history| history.before(position));
        bans.apply(logits, tokens.unwrap_or_default());
        no_end.apply(logits, position);
        bias(logits, biases);
        if let Some(history) = &mut self.history {
            if !penalties.are_off() {
                penalties.apply(logits, history.counts(position));
            }
            if let Some(dry) = dry {
                self.breakers_seen.forget(history.take_first_changed());
                dry.apply(logits, history.before(position), &mut self.breakers_seen);
            }
        }
        if filters.top_n_sigma > 0.0 {
            let n = filters.top_n_sigma;
            dispatch(TopNSigma { logits, n });
        }
    }
    /// What the request asks for.
    pub fn options(&self) -> &DrawOptions {
        &self.options
    }

    /// The tokens before a position, where the options need them.
    pub fn tokens_before(&self, position: usize) -> Option<&[i32]> {
        let history = self.history.as_ref()?;
        Some(history.before(position))
    }

    /// How often each token occurs before a position, where the options need it: in any order.
    pub fn counts_before(&mut self, position: usize) -> impl Iterator<Item = (i32, Count)> {
        let history = self.history.as_mut();
        let counts = history.map(|history| history.counts(position).iter());
        let counts = counts
            .into_iter()
            .flatten()
            .map(|(&id, &count)| (id, count));
        counts.filter(|(_, count)| count.all > 0)
    }

    /// What DRY subtracts from the logits of the token at a position, each of which is there once.
    pub fn dry_penalties(&mut self, position: usize) -> Vec<(i32, f32)> {
        let (Some(dry), Some(history)) = (&self.options.dry, &mut self.history) else {
            return Vec::new();
        };
        self.breakers_seen.forget(history.take_first_changed());
        dry.penalties(history.before(position), &mut self.breakers_seen)
    }
}

/// The states of all sequences, by slot; most have none.
#[derive(Debug)]
pub struct SequenceStates(Vec<Option<Box<Mutex<SequenceState>>>>);

impl SequenceStates {
    /// So many slots without a state.
    pub fn new(num_slots: usize) -> Self {
        Self((0..num_slots).map(|_| None).collect())
    }

    pub fn num_slots(&self) -> usize {
        self.0.len()
    }

    /// Gives a slot a state, or takes it away.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set(&mut self, slot: usize, state: Option<SequenceState>) {
        self.0[slot] = state.map(|state| Box::new(Mutex::new(state)));
    }

    /// The state of a slot, if it has one.
    pub fn get(&self, slot: usize) -> Option<MutexGuard<'_, SequenceState>> {
        let state = self.0.get(slot)?.as_ref()?;
        Some(state.lock())
    }

    /// Writes the token of a position of a sequence that needs its tokens; false if the token before it is not known.
    pub fn write(&self, slot: usize, position: usize, token: i32) -> bool {
        let Some(mut state) = self.get(slot) else {
            return true;
        };
        let history = state.history.as_mut();
        history.is_none_or(|history| history.write(position, token))
    }

    /// Writes what was drawn for sequences at positions; a draw that gave no token changes nothing.
    pub fn record(&self, slots: &[i32], positions: &[i32], tokens: &[i32]) {
        for ((&slot, &position), &token) in slots.iter().zip(positions).zip(tokens) {
            if token >= 0 {
                self.write(slot as usize, position as usize, token);
            }
        }
    }

    /// Forgets what a sequence has from a position on.
    pub fn forget_from(&self, slot: usize, position: usize) {
        if let Some(history) = self.get(slot).as_mut().and_then(|it| it.history.as_mut()) {
            history.forget_from(position);
        }
    }

    /// Whether the draws of a sequence depend on its tokens; None where it asks for nothing.
    pub fn needs_tokens(&self, slot: usize) -> Option<bool> {
        self.get(slot).map(|state| state.history.is_some())
    }
}
