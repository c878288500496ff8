//! Counts of values by size, as Prometheus has them.

/// Buckets by upper bound, the last without one.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Upper bounds rise; a value belongs to the first bound that it does not exceed.
    pub fn new(bounds: Vec<f64>) -> Self {
        let counts = vec![0; bounds.len() + 1];
        Self {
            bounds,
            counts,
            sum: 0.0,
        }
    }

    pub(crate) fn add(&mut self, value: f64, times: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += times;
        self.sum += value * times as f64;
    }

    /// Values in each bucket, not added up; one more than there are bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub fn sum(&self) -> f64 {
        self.sum
    }
}
