//! Where waiting time goes: for each cause one total, which grows as time passes.
//!
//! Whoever waits remembers the totals of the moment when its wait began; the difference to those of the moment when it
//! ends says what it waited for. So the books cost the same for one request as for thousands: one addition a step.
//!
//! ```text
//!             schedule          schedule          schedule          schedule
//!   time      |---- no row -----|---- no row -----|---- budget -----|
//!   request         |- 2/3 no row -- + -- no row -|---- budget -----| starts
//! ```
//!
//! Between two steps the cause is what stopped the head of the queue in the first of them. A head that never ran has the
//! turn of its tenant: to requests of other tenants that time is lost to their share.

use crate::ids::{Nanos, Tenant};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The step that is being computed: it came after that was planned.
    Step,
    /// Every row of the batch is taken.
    Row,
    /// The KV cache has too few free blocks.
    Blocks,
    /// The step's tokens, or its time, are spent on others.
    Budget,
    /// The policy lets nobody join: a batch runs, or is not full yet.
    Policy,
    /// It is another tenant's turn.
    Share,
    /// It is paused or has no credit.
    Suspended,
}

impl Cause {
    pub const ALL: [Self; 7] = [
        Self::Step,
        Self::Row,
        Self::Blocks,
        Self::Budget,
        Self::Policy,
        Self::Share,
        Self::Suspended,
    ];
}

/// Time by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits([Nanos; Cause::ALL.len()]);

impl Waits {
    pub fn get(&self, cause: Cause) -> Nanos {
        self.0[cause as usize]
    }

    pub fn total(&self) -> Nanos {
        self.0.iter().sum()
    }

    fn add(&mut self, cause: Cause, time: Nanos) {
        self.0[cause as usize] += time;
    }

    /// Adds what has come to `earlier` since.
    pub(crate) fn add_since(&mut self, now: &Self, earlier: &Self) {
        for (time, (now, earlier)) in self.0.iter_mut().zip(now.0.iter().zip(earlier.0)) {
            *time += now - earlier;
        }
    }
}

/// In which line somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// That of its tenant: it never ran.
    Tenant(Tenant),
    /// Before all tenants: it was preempted.
    Front,
    /// In none: it is paused, or has no credit.
    Suspended,
    /// In none: it has a row, and the steps so far had nothing left for it.
    Seated,
}

/// The totals; time that goes backwards does not pass.
#[derive(Clone, Debug)]
pub(crate) struct WaitClock {
    now: Nanos,
    cause: Cause,
    /// Whose turn it is; None concerns all alike.
    turn: Option<Tenant>,
    all: Waits,
    /// Of it, the time of somebody's turn; and whose.
    turns: Waits,
    turns_of: Vec<Waits>,
}

impl Default for WaitClock {
    fn default() -> Self {
        Self {
            now: 0,
            cause: Cause::Step,
            turn: None,
            all: Waits::default(),
            turns: Waits::default(),
            turns_of: Vec::new(),
        }
    }
}

impl WaitClock {
    /// It is `now`, at least.
    pub(crate) fn pass(&mut self, now: Nanos) {
        let time = now.saturating_sub(self.now);
        self.now += time;
        self.all.add(self.cause, time);
        if let Some(tenant) = self.turn {
            self.turns.add(self.cause, time);
            self.turns_of[tenant as usize].add(self.cause, time);
        }
    }

    /// What stops the queue from now on.
    pub(crate) fn hold(&mut self, cause: Cause, turn: Option<Tenant>) {
        (self.cause, self.turn) = (cause, turn);
        if let Some(tenant) = turn
            && self.turns_of.len() <= tenant as usize
        {
            self.turns_of
                .resize_with(tenant as usize + 1, Waits::default);
        }
    }

    /// What stops those in a line now.
    pub(crate) fn cause(&self, line: Line) -> Cause {
        match line {
            Line::Tenant(tenant) if self.turn.is_some_and(|turn| turn != tenant) => Cause::Share,
            Line::Tenant(_) | Line::Front => self.cause,
            Line::Suspended => Cause::Suspended,
            Line::Seated => Cause::Budget,
        }
    }

    /// All the time so far, as those in a line see it; the total is the same for all.
    pub(crate) fn totals(&self, line: Line) -> Waits {
        let mut totals = Waits::default();
        match line {
            Line::Front => totals = self.all,
            Line::Tenant(tenant) => {
                let own = self.turns_of.get(tenant as usize).copied();
                let own = own.unwrap_or_default();
                totals.add_since(&self.all, &self.turns);
                totals.add_since(&own, &Waits::default());
                totals.add(Cause::Share, self.turns.total() - own.total());
            }
            Line::Suspended => totals.add(Cause::Suspended, self.now),
            Line::Seated => totals.add(Cause::Budget, self.now),
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_sees_the_same_time_by_its_own_causes() {
        let mut clock = WaitClock::default();
        clock.pass(10);
        clock.hold(Cause::Row, Some(1));
        clock.pass(15);
        clock.hold(Cause::Blocks, None);
        clock.pass(18);
        let times = |line, causes: &[Cause]| -> Vec<_> {
            let totals = clock.totals(line);
            assert_eq!(totals.total(), 18);
            causes.iter().map(|&cause| totals.get(cause)).collect()
        };
        let causes = [Cause::Step, Cause::Row, Cause::Blocks, Cause::Share];
        assert_eq!(times(Line::Tenant(1), &causes), [10, 5, 3, 0]);
        assert_eq!(times(Line::Tenant(7), &causes), [10, 0, 3, 5]);
        assert_eq!(times(Line::Front, &causes), [10, 5, 3, 0]);
        assert_eq!(times(Line::Suspended, &[Cause::Suspended]), [18]);
        assert_eq!(times(Line::Seated, &[Cause::Budget]), [18]);
    }

    #[test]
    fn time_that_goes_backwards_does_not_pass() {
        let mut clock = WaitClock::default();
        for now in [10, 4, 9, 11, Nanos::MAX, 0, Nanos::MAX] {
            clock.pass(now);
        }
        assert_eq!(clock.totals(Line::Front).total(), Nanos::MAX);
    }
}
