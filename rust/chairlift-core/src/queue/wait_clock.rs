//! Where waiting time goes: for each cause one total, which grows as time passes.
//!
//! A waiting request remembers the totals of the moment when its wait began; their difference to the totals when it ends
//! says what it waited for. So the books cost the same for one request as for thousands: one addition a step.
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
pub enum WaitCause {
    /// The step that is being computed: it came after that was planned.
    Step,
    /// Every row of the batch is taken.
    Row,
    /// The KV cache has too few free blocks.
    Blocks,
    /// The step's tokens, or its time, are spent on others.
    Budget,
    /// The policy admits no request: a batch runs, or is not full yet.
    Policy,
    /// It is another tenant's turn.
    Share,
    /// It is paused or has no credit.
    Suspended,
}

impl WaitCause {
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
pub struct WaitTimes([Nanos; WaitCause::ALL.len()]);

impl WaitTimes {
    pub fn get(&self, cause: WaitCause) -> Nanos {
        self.0[cause as usize]
    }

    pub fn total(&self) -> Nanos {
        self.0.iter().sum()
    }

    fn add(&mut self, cause: WaitCause, time: Nanos) {
        self.0[cause as usize] += time;
    }

    /// Adds what has come to `earlier` since.
    pub(crate) fn add_since(&mut self, now: &Self, earlier: &Self) {
        for (time, (now, earlier)) in self.0.iter_mut().zip(now.0.iter().zip(earlier.0)) {
            *time += now - earlier;
        }
    }
}

/// How a request waits, which decides what stops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// It is fresh, and in the queue of its tenant.
    Fresh(Tenant),
    /// It was preempted, and is before all tenants.
    Preempted,
    /// It is paused, or has no credit.
    Suspended,
    /// It has a row, and the steps so far had nothing left for it.
    Running,
}

/// The totals; time that goes backwards does not pass.
#[derive(Clone, Debug)]
pub(crate) struct WaitClock {
    now: Nanos,
    cause: WaitCause,
    /// Whose turn it is; None concerns all alike.
    turn: Option<Tenant>,
    all: WaitTimes,
    /// The part of `all` that was some tenant's turn: of all tenants together, and by tenant.
    turns: WaitTimes,
    turns_of: Vec<WaitTimes>,
}

impl Default for WaitClock {
    fn default() -> Self {
        Self {
            now: 0,
            cause: WaitCause::Step,
            turn: None,
            all: WaitTimes::default(),
            turns: WaitTimes::default(),
            turns_of: Vec::new(),
        }
    }
}

impl WaitClock {
    /// It is `now`, at least.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let time = now.saturating_sub(self.now);
        self.now += time;
        self.all.add(self.cause, time);
        if let Some(tenant) = self.turn {
            self.turns.add(self.cause, time);
            self.turns_of[tenant as usize].add(self.cause, time);
        }
    }

    /// What stops the queue from now on.
    pub(crate) fn set_cause(&mut self, cause: WaitCause, turn: Option<Tenant>) {
        (self.cause, self.turn) = (cause, turn);
        if let Some(tenant) = turn
            && self.turns_of.len() <= tenant as usize
        {
            self.turns_of
                .resize_with(tenant as usize + 1, WaitTimes::default);
        }
    }

    /// Whose turn it is; None concerns all alike.
    pub(crate) fn turn(&self) -> Option<Tenant> {
        self.turn
    }

    /// What stops a request now.
    pub(crate) fn cause(&self, waiter: Waiter) -> WaitCause {
        match waiter {
            Waiter::Fresh(tenant) if self.turn.is_some_and(|turn| turn != tenant) => {
                WaitCause::Share
            }
            Waiter::Fresh(_) | Waiter::Preempted => self.cause,
            Waiter::Suspended => WaitCause::Suspended,
            Waiter::Running => WaitCause::Budget,
        }
    }

    /// All the time so far, as a request that waits so sees it; the total is the same for all.
    pub(crate) fn totals(&self, waiter: Waiter) -> WaitTimes {
        let mut totals = WaitTimes::default();
        match waiter {
            Waiter::Preempted => totals = self.all,
            Waiter::Fresh(tenant) => {
                let of_tenant = self.turns_of.get(tenant as usize).copied();
                let of_tenant = of_tenant.unwrap_or_default();
                totals.add_since(&self.all, &self.turns);
                totals.add_since(&of_tenant, &WaitTimes::default());
                totals.add(WaitCause::Share, self.turns.total() - of_tenant.total());
            }
            Waiter::Suspended => totals.add(WaitCause::Suspended, self.now),
            Waiter::Running => totals.add(WaitCause::Budget, self.now),
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waiter_sees_the_same_time_by_its_own_causes() {
        let mut clock = WaitClock::default();
        clock.advance(10);
        clock.set_cause(WaitCause::Row, Some(1));
        clock.advance(15);
        clock.set_cause(WaitCause::Blocks, None);
        clock.advance(18);
        let times = |waiter, causes: &[WaitCause]| -> Vec<_> {
            let totals = clock.totals(waiter);
            assert_eq!(totals.total(), 18);
            causes.iter().map(|&cause| totals.get(cause)).collect()
        };
        let causes = [
            WaitCause::Step,
            WaitCause::Row,
            WaitCause::Blocks,
            WaitCause::Share,
        ];
        assert_eq!(times(Waiter::Fresh(1), &causes), [10, 5, 3, 0]);
        assert_eq!(times(Waiter::Fresh(7), &causes), [10, 0, 3, 5]);
        assert_eq!(times(Waiter::Preempted, &causes), [10, 5, 3, 0]);
        assert_eq!(times(Waiter::Suspended, &[WaitCause::Suspended]), [18]);
        assert_eq!(times(Waiter::Running, &[WaitCause::Budget]), [18]);
    }

    #[test]
    fn time_that_goes_backwards_does_not_pass() {
        let mut clock = WaitClock::default();
        for now in [10, 4, 9, 11, Nanos::MAX, 0, Nanos::MAX] {
            clock.advance(now);
        }
        assert_eq!(clock.totals(Waiter::Preempted).total(), Nanos::MAX);
    }
}
