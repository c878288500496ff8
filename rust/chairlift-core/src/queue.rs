//! Who waits, in the order in which they join: the preempted first, then by priority with ageing.
//!
//! A level of priority is worth [`PRIORITY_LEVEL`] of waiting: a request stands where it would stand had it come so much
//! earlier. Nobody starves, since whoever arrives late enough is behind; and nothing is sorted again as time passes,
//! since all grow older at the same pace.
//!
//! ```text
//! front | preempted, by rank | new, by rank |        rank = arrival - priority * PRIORITY_LEVEL, ties in order of arrival
//! ```

use std::{collections::BTreeSet, ops::Bound};

use crate::{Nanos, request::RequestId};

/// Waiting that one level of priority stands for: 10 s.
pub const PRIORITY_LEVEL: Nanos = 10_000_000_000;

/// A request's place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// It never ran. The preempted come first.
    is_new: bool,
    rank: i128,
    request: RequestId,
}

impl Place {
    pub(crate) fn new(is_new: bool, arrival: Nanos, priority: i32, request: RequestId) -> Self {
        let ahead = i128::from(priority) * i128::from(PRIORITY_LEVEL);
        Self {
            is_new,
            rank: i128::from(arrival) - ahead,
            request,
        }
    }
}

/// The requests that may join: each operation takes time in the logarithm of their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    places: BTreeSet<Place>,
    num_preempted: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn num_preempted(&self) -> usize {
        self.num_preempted
    }

    pub(crate) fn front(&self) -> Option<RequestId> {
        self.places.first().map(|place| place.request)
    }

    pub(crate) fn insert(&mut self, place: Place) {
        self.num_preempted += usize::from(!place.is_new);
        let is_listed = self.places.insert(place);
        assert!(is_listed, "invariant: {place:?} is listed once");
    }

    pub(crate) fn remove(&mut self, place: Place) {
        assert!(self.places.remove(&place), "invariant: {place:?} is listed");
        self.num_preempted -= usize::from(!place.is_new);
    }

    /// Requests before a place, which need not be listed; takes time in the number of those behind it.
    pub(crate) fn num_before(&self, place: Place) -> usize {
        let behind = (Bound::Included(place), Bound::Unbounded);
        self.places.len() - self.places.range(behind).count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().copied()
    }

    /// The requests that never ran, in order.
    pub(crate) fn new_requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        let new = self.places.iter().skip(self.num_preempted);
        new.map(|place| place.request)
    }
}

impl Place {
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(arrival: Nanos, priority: i32, id: u64) -> Place {
        Place::new(true, arrival, priority, RequestId(id))
    }

    fn order(places: &[Place]) -> Vec<u64> {
        let mut queue = Queue::default();
        for &place in places {
            queue.insert(place);
        }
        queue.iter().map(|place| place.request.0).collect()
    }

    #[test]
    fn a_level_is_worth_ten_seconds_of_waiting() {
        let old = place(0, 0, 1);
        let just_in_time = place(PRIORITY_LEVEL - 1, 1, 2);
        let too_late = place(PRIORITY_LEVEL, 1, 3);
        assert_eq!(order(&[old, just_in_time, too_late]), [2, 1, 3]);
    }

    #[test]
    fn the_preempted_come_first_and_ties_keep_the_order_of_arrival() {
        let preempted = Place::new(false, 9, -10, RequestId(7));
        assert_eq!(
            order(&[place(5, 0, 2), place(5, 0, 1), preempted]),
            [7, 1, 2]
        );
    }

    #[test]
    fn extreme_values_do_not_wrap() {
        let last = place(Nanos::MAX, i32::MIN, 1);
        let first = place(0, i32::MAX, 2);
        assert_eq!(order(&[last, first]), [2, 1]);
    }

    #[test]
    fn those_before_a_place_are_counted() {
        let mut queue = Queue::default();
        (0..4).for_each(|i| queue.insert(place(i, 0, i)));
        assert_eq!(queue.num_before(place(9, 0, 9)), 4);
        assert_eq!(queue.num_before(place(9, 1, 9)), 0);
        queue.remove(place(1, 0, 1));
        assert_eq!(queue.num_before(place(2, 0, 2)), 1);
    }
}
