//! How many replicas there should be: the rule of Ray Serve, with its delays.

use chairlift_core::Nanos;

use crate::options::Autoscale;

/// The autoscaler looks so often.
pub(crate) const PERIOD: Nanos = 1_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Autoscaler {
    pub(crate) options: Autoscale,
    max_replicas: usize,
    more_since: Option<Nanos>,
    fewer_since: Option<Nanos>,
}

impl Autoscaler {
    pub(crate) fn new(options: Autoscale, max_replicas: usize) -> Self {
        Self {
            options,
            max_replicas,
            more_since: None,
            fewer_since: None,
        }
    }

    /// How many replicas there should be, of which there are `num_replicas`, those that start included: another number
    /// only if it was wanted for as long as the delay.
    pub(crate) fn wanted(
        &mut self,
        now: Nanos,
        num_replicas: usize,
        num_in_flight: usize,
    ) -> usize {
        let (min, max) = (self.options.min_replicas, self.max_replicas);
        let wanted = num_in_flight.div_ceil(self.options.target).clamp(min, max);
        let since = |is_wanted: bool, since: Option<Nanos>| is_wanted.then(|| since.unwrap_or(now));
        self.more_since = since(wanted > num_replicas, self.more_since);
        self.fewer_since = since(wanted < num_replicas, self.fewer_since);
        let is_due = |since: Option<Nanos>, delay: Nanos| since.is_some_and(|t| now - t >= delay);
        if is_due(self.more_since, self.options.up_delay)
            || is_due(self.fewer_since, self.options.down_delay)
        {
            (self.more_since, self.fewer_since) = (None, None);
            return wanted;
        }
        num_replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_or_fewer_come_after_their_delays_and_not_for_a_moment() {
        let options = Autoscale {
            min_replicas: 1,
            target: 2,
            up_delay: 30,
            down_delay: 600,
            start: 0,
        };
        let mut autoscaler = Autoscaler::new(options, 8);
        assert_eq!(autoscaler.wanted(0, 1, 9), 1);
        assert_eq!(autoscaler.wanted(20, 1, 1), 1, "the wish is gone");
        assert_eq!(autoscaler.wanted(40, 1, 9), 1);
        assert_eq!(autoscaler.wanted(70, 1, 99), 8, "no more than there may be");
        assert_eq!(autoscaler.wanted(80, 8, 0), 8);
        assert_eq!(autoscaler.wanted(679, 8, 0), 8);
        assert_eq!(autoscaler.wanted(680, 8, 3), 2);
    }
}
