//! A barrier of processes: bounded, and one that each of them can break.
//!
//! The words, each [`Barrier::stride`] words after the other so that no two share a cache line:
//!
//! ```text
//!   round     the last round that ended; the highest bit says that the barrier is poisoned
//!   sleepers  ranks that sleep on `round`, or are about to
//!   cause     why it is poisoned; 0 before
//!   stamps    for each rank: the last round that it arrived at
//! ```
//!
//! The last rank to arrive sees every stamp, since all accesses are in one order, and ends the round. A poison is a bit
//! of the word that ranks sleep on: a rank that is about to sleep finds another value, and does not.

use crate::{
    broken::{Broken, Cause},
    word::Word,
};
use std::time::{Duration, Instant};

const ROUND: usize = 0;
const SLEEPERS: usize = 1;
const CAUSE: usize = 2;
const STAMPS: usize = 3;

const POISON: u32 = 1 << 31;

/// Looks at the round between two looks at the clock.
const LOOKS: u32 = 32;

/// The longest sleep without a look at the clock.
const SLICE: Duration = Duration::from_millis(100);

/// Words that a barrier of so many ranks takes, at stride 1.
pub const fn num_words(num_ranks: usize) -> usize {
    STAMPS + num_ranks
}

/// How long a rank waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time before it sleeps.
    pub spin: Duration,
    /// Time after which it poisons the barrier; None waits as long as it takes.
    pub timeout: Option<Duration>,
}

/// A round of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round(u32);

impl Round {
    /// Which of two areas a rank writes before it arrives at this round.
    ///
    /// What is read behind round `k` is written again before round `k + 2`, at which no rank can be before all have
    /// arrived at `k + 1`, and so have read it.
    pub fn parity(self) -> usize {
        (self.0 & 1) as usize
    }

    fn next(self) -> Self {
        Self((self.0 + 1) & !POISON)
    }

    fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & !POISON)
    }
}

/// One rank's view of the barrier.
#[derive(Clone, Copy, Debug)]
pub struct Barrier<'a, W> {
    words: &'a [W],
    stride: usize,
    rank: usize,
    num_ranks: usize,
}

impl<'a, W: Word> Barrier<'a, W> {
    /// A barrier in words that were all 0 when the first rank came; None where they are too few, or there is no such
    /// rank.
    pub fn new(words: &'a [W], stride: usize, rank: usize, num_ranks: usize) -> Option<Self> {
        let is_met = rank < num_ranks
            && stride > 0
            && num_ranks < 1 << 16
            && words.len() > (num_words(num_ranks) - 1) * stride;
        is_met.then_some(Self {
            words,
            stride,
            rank,
            num_ranks,
        })
    }

    fn word(&self, number: usize) -> &'a W {
        &self.words[number * self.stride]
    }

    fn stamp(&self, rank: usize) -> &'a W {
        self.word(STAMPS + rank)
    }

    /// The round that this rank arrives at next.
    pub fn next_round(&self) -> Round {
        Round(self.stamp(self.rank).load() & !POISON).next()
    }

    /// Why the barrier is poisoned; None where it is not.
    pub fn broken(&self) -> Option<Broken> {
        let is_poisoned = self.word(ROUND).load() & POISON != 0;
        is_poisoned.then(|| Broken::from_word(self.word(CAUSE).load()))
    }

    /// Ends the group: every rank that waits, or comes to wait, returns an error. The first cause stays.
    pub fn poison(&self, cause: Cause, rank: usize) {
        let word = Broken { cause, rank }.to_word();
        // Before the bit, so that a rank that sees the bit finds the cause.
        let _ = self.word(CAUSE).compare_exchange(0, word);
        self.word(ROUND).set_bits(POISON);
        self.word(ROUND).wake();
    }

    /// Arrives at the next round, and waits until all ranks have.
    ///
    /// # Errors
    /// The barrier is poisoned, perhaps by this rank: another one did not arrive in time.
    pub fn wait(&self, limits: Limits) -> Result<Round, Broken> {
        let round = self.next_round();
        self.stamp(self.rank).store(round.0);
        if self.late_rank(round).is_none() {
            return self.end(round);
        }
        let began = Instant::now();
        while !limits.spin.is_zero() {
            for _ in 0..LOOKS {
                if let Some(ended) = self.ended(round) {
                    return ended;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= limits.spin {
                break;
            }
        }
        // Before the last look: a rank that ends the round later sees it.
        self.word(SLEEPERS).add(1);
        let ended = self.sleep(round, limits.timeout);
        self.word(SLEEPERS).add(u32::MAX);
        ended
    }

    fn sleep(&self, round: Round, timeout: Option<Duration>) -> Result<Round, Broken> {
        let mut waited = Duration::ZERO;
        loop {
            if let Some(ended) = self.ended(round) {
                return ended;
            }
            let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited));
            if left.is_zero() {
                // All have arrived, and the last one has not ended the round yet: each of them may.
                let Some(rank) = self.late_rank(round) else {
                    return self.end(round);
                };
                self.poison(Cause::Late, rank);
                continue;
            }
            let began = Instant::now();
            self.word(ROUND).sleep(round.previous().0, left.min(SLICE));
            // A longer sleep was a stop of this process, which says nothing about the others.
            waited += began.elapsed().min(SLICE);
        }
    }

    /// What a look at the round says; None while ranks are missing.
    fn ended(&self, round: Round) -> Option<Result<Round, Broken>> {
        let found = self.word(ROUND).load();
        // A round that ended before the poison has ended for all; the next one finds the poison.
        if found & !POISON == round.0 {
            return Some(Ok(round));
        }
        (found & POISON != 0).then(|| Err(Broken::from_word(self.word(CAUSE).load())))
    }

    /// Ends a round at which all have arrived.
    fn end(&self, round: Round) -> Result<Round, Broken> {
        let word = self.word(ROUND);
        match word.compare_exchange(round.previous().0, round.0) {
            Ok(_) => {
                if self.word(SLEEPERS).load() > 0 {
                    word.wake();
                }
                Ok(round)
            }
            // Two ranks can both be the last.
            Err(found) if found & !POISON == round.0 => Ok(round),
            Err(_) => Err(Broken::from_word(self.word(CAUSE).load())),
        }
    }

    /// A rank that has not arrived at a round; None where all have, or are further.
    fn late_rank(&self, round: Round) -> Option<usize> {
        (0..self.num_ranks).find(|rank| {
            let stamp = self.stamp(*rank).load();
            stamp != round.0 && stamp != round.next().0
        })
    }
}
