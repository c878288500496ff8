//! The matchers of all sequences by slot, and the masks of a step.
//!
//! ```text
//! draws of a step   slot 4 at 17, 18, 19 (two drafts)   slot 9 at 40 (no constraint)   slot 2 at 7
//! pieces of work    |------- one matcher -------|                                      |-- one --|
//! masks             line 0, 1, 2                        -1                             line 3
//! ```
//!
//! The masks of a step are written into memory of their own: what an earlier step had allowed is never seen again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use chairlift_draws::mask_line::{FREE, NOT_COMPUTED};

use crate::{
    matcher::{Gap, Matcher, Outcome},
    workers::{Begun, Spread, Work, Workers, each, lock},
};

const MAX_THREADS: usize = 4;

/// A request and which of its answers.
pub type Key = (u64, u32);

/// Where a token is drawn. Draws of one sequence stand together, in the order of their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub slot: i32,
    /// Of the token that is drawn.
    pub position: i32,
    /// The token before it: the last, or a draft.
    pub last_token: i32,
}

/// Which tokens the draws of a step may give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masks {
    /// `[M, num_words]`: bit i % 32 of number i / 32 allows token i.
    pub bits: Vec<i32>,
    pub num_words: usize,
    /// Of each draw its line, [`FREE`] or [`NOT_COMPUTED`].
    pub of_draw: Vec<i32>,
}

impl Masks {
    /// The tokens that a line allows.
    pub fn allowed(&self, line: usize) -> Vec<i32> {
        let line = &self.bits[line * self.num_words..(line + 1) * self.num_words];
        let ids = 0..(self.num_words * 32) as i32;
        ids.filter(|&id| is_allowed(line, id)).collect()
    }
}

type SharedMatcher = Arc<Mutex<Matcher>>;

/// The matchers of all sequences that have a constraint.
pub struct Constraints {
    slots: Vec<Option<(Key, SharedMatcher)>>,
    slot_of: HashMap<Key, usize>,
    /// Of a mask; all constraints have the same vocabulary.
    num_words: usize,
    /// Cores are left while a step is computed: masks are computed beside it.
    has_idle_cores: bool,
    /// Started with the first masks.
    workers: OnceLock<Workers>,
}

impl Constraints {
    /// No sequence has a constraint.
    ///
    /// With `has_idle_cores` threads of its own compute masks while the step is computed. Otherwise the caller's do, after it: where
    /// the step uses every core, a mask beside it takes a core from a thread that all others wait for.
    pub fn new(num_slots: usize, has_idle_cores: bool) -> Self {
        Self {
            slots: (0..num_slots).map(|_| None).collect(),
            slot_of: HashMap::new(),
            num_words: 0,
            has_idle_cores,
            workers: OnceLock::new(),
        }
    }

    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// Sequences that have a constraint.
    pub fn len(&self) -> usize {
        self.slot_of.len()
    }

    /// Whether no sequence has a constraint.
    pub fn is_empty(&self) -> bool {
        self.slot_of.is_empty()
    }

    /// Gives a sequence that begins in a slot its constraint; what the slot held is forgotten. The sequences of a request share a
    /// budget of processor time.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn begin(&mut self, slot: usize, key: Key, mut matcher: Matcher) {
        self.clear(slot);
        let sibling = self.slot_of.iter().find(|(other, _)| other.0 == key.0);
        if let Some(sibling) = sibling.and_then(|(_, &slot)| self.at(slot)) {
            matcher.share_budget(&sibling);
        }
        self.num_words = matcher.num_words();
        self.slots[slot] = Some((key, Arc::new(Mutex::new(matcher))));
        self.slot_of.insert(key, slot);
    }

    /// Takes the constraint of a slot away, if it has one.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn clear(&mut self, slot: usize) {
        if let Some((key, _)) = self.slots[slot].take() {
            self.slot_of.remove(&key);
        }
    }

    /// The answer has ended.
    pub fn end(&mut self, key: Key) {
        if let Some(slot) = self.slot_of.remove(&key) {
            self.slots[slot] = None;
        }
    }

    /// All answers of a request have ended.
    pub fn end_all(&mut self, request: u64) {
        let keys = self.slot_of.keys().copied();
        let keys: Vec<_> = keys.filter(|key| key.0 == request).collect();
        for key in keys {
            self.end(key);
        }
    }

    /// The matcher of a slot, if it has one; waits for a mask that is computed.
    pub fn at(&self, slot: usize) -> Option<MutexGuard<'_, Matcher>> {
        let (_, matcher) = self.slots.get(slot)?.as_ref()?;
        Some(lock(matcher))
    }

    /// The matcher of an answer, as [`Constraints::at`].
    pub fn of(&self, key: Key) -> Option<MutexGuard<'_, Matcher>> {
        self.at(*self.slot_of.get(&key)?)
    }

    /// Whether the sequence of a slot has one.
    pub fn has(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(Option::is_some)
    }

    /// Begins to compute the masks of a step; None where no draw has a constraint.
    pub fn start(&self, draws: &[Draw]) -> Option<Pending> {
        if self.is_empty() {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut start = 0;
        for draws_of_slot in draws.chunk_by(|a, b| a.slot == b.slot) {
            let slot = usize::try_from(draws_of_slot[0].slot).ok();
            let matcher = slot.and_then(|slot| self.slots.get(slot)?.as_ref());
            if let Some((_, matcher)) = matcher {
                runs.push(Run {
                    start,
                    draws: draws_of_slot.to_vec(),
                    matcher: Arc::clone(matcher),
                    lines: OnceLock::new(),
                });
            }
            start += draws_of_slot.len();
        }
        if runs.is_empty() {
            return None;
        }
        let step = Arc::new(Step {
            runs,
            num_words: self.num_words,
        });
        let begun = self.has_idle_cores.then(|| {
            let workers = self.workers.get_or_init(|| {
                let available = thread::available_parallelism().map_or(1, usize::from);
                Workers::new((available / 2).clamp(1, MAX_THREADS))
            });
            workers.begin(Arc::clone(&step) as Arc<dyn Work>)
        });
        Some(Pending {
            step,
            begun,
            num_draws: draws.len(),
        })
    }

    /// Takes the tokens that a step has added to answers, and returns those that their grammars force behind them: up to
    /// `max_forced` each, in the order of keys, answers without any left out.
    ///
    /// Each answer is there once; one without a constraint is ignored.
    pub fn follow(
        &self,
        answers: &[(Key, &[i32])],
        max_forced: usize,
        spread: Spread<'_>,
    ) -> Vec<(Key, Vec<i32>)> {
        let has_one = |(key, _): &&(Key, &[i32])| self.slot_of.contains_key(key);
        let answers: Vec<_> = answers.iter().filter(has_one).collect();
        let found = Mutex::new(Vec::new());
        each(answers.len(), spread, |place| {
            let &(key, tokens) = answers[place];
            let Some(mut matcher) = self.of(key) else {
                return;
            };
            let forced = matcher.bounded(|matcher| {
                matcher.follow(tokens);
                matcher.forced(max_forced)
            });
            lock(&found).push((key, forced.unwrap_or_default()));
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.retain(|(_, forced)| !forced.is_empty());
        // Whichever thread was first.
        found.sort_unstable();
        found
    }
}

/// Masks that are computed.
pub struct Pending {
    step: Arc<Step>,
    /// None leaves all work to the threads that wait.
    begun: Option<Begun>,
    num_draws: usize,
}

impl Pending {
    /// Waits for the masks, or computes them on the threads of `spread` where nothing has begun.
    ///
    /// # Errors
    /// If a draw is not behind the tokens that are known of its sequence.
    ///
    /// # Panics
    /// If a piece of work was lost.
    pub fn join(&self, spread: Spread<'_>) -> Result<Masks, Gap> {
        match &self.begun {
            Some(begun) => begun.finish(),
            None => each(self.step.num_pieces(), spread, |piece| self.step.run(piece)),
        }
        let num_words = self.step.num_words;
        let mut masks = Masks {
            bits: Vec::new(),
            num_words,
            of_draw: vec![FREE; self.num_draws],
        };
        let mut num_lines = 0;
        for run in &self.step.runs {
            let lines = run.lines.get().expect("invariant: all pieces are done");
            let lines = lines.as_ref().map_err(|&gap| gap)?;
            masks.bits.extend_from_slice(&lines.bits);
            for (i, &has_line) in lines.has_line.iter().enumerate() {
                masks.of_draw[run.start + i] = if has_line { num_lines } else { NOT_COMPUTED };
                num_lines += i32::from(has_line);
            }
        }
        Ok(masks)
    }
}

struct Step {
    runs: Vec<Run>,
    num_words: usize,
}

/// The draws of one sequence.
struct Run {
    /// Place of the first among the draws of the step.
    start: usize,
    draws: Vec<Draw>,
    matcher: SharedMatcher,
    lines: OnceLock<Result<Lines, Gap>>,
}

/// The masks of the first draws of a sequence. Those behind a draft that may not follow have none: they do not count.
#[derive(Default)]
struct Lines {
    bits: Vec<i32>,
    has_line: Vec<bool>,
}

impl Lines {
    fn not_computed() -> Self {
        Self {
            bits: Vec::new(),
            has_line: vec![false],
        }
    }
}

impl Work for Step {
    fn num_pieces(&self) -> usize {
        self.runs.len()
    }

    fn run(&self, piece: usize) {
        let run = &self.runs[piece];
        // A second call for the same masks finds them.
        run.lines.get_or_init(|| {
            let mut matcher = lock(&run.matcher);
            let lines = matcher.bounded(|matcher| lines(matcher, &run.draws, self.num_words));
            lines.unwrap_or_else(|| Ok(Lines::not_computed()))
        });
    }
}

fn lines(matcher: &mut Matcher, draws: &[Draw], num_words: usize) -> Result<Lines, Gap> {
    let mut lines = Lines::default();
    for (i, draw) in draws.iter().enumerate() {
        if i > 0 && !is_allowed(&lines.bits[lines.bits.len() - num_words..], draw.last_token) {
            break;
        }
        let position = usize::try_from(draw.position).unwrap_or_default();
        matcher.seek(position, draw.last_token)?;
        let start = lines.bits.len();
        lines.bits.resize(start + num_words, 0);
        let outcome = matcher.mask(&mut lines.bits[start..]);
        lines.has_line.push(outcome == Outcome::Mask);
        if outcome == Outcome::TooComplex {
            lines.bits.truncate(start);
            break;
        }
    }
    Ok(lines)
}

/// Whether a mask has the bit of a token.
pub(crate) fn is_allowed(mask: &[i32], token: i32) -> bool {
    let Ok(id) = usize::try_from(token) else {
        return false;
    };
    mask.get(id / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}
