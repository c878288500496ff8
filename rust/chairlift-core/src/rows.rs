//! The rows of the batch: free, used, or kept empty until a static or dynamic batch ends.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    error::{Violation, ensure},
    ids::Row,
};

/// Hands out the lowest free row.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    free: BinaryHeap<Reverse<Row>>,
    held: Vec<Row>,
    total: usize,
}

impl Rows {
    pub(crate) fn new(num_rows: usize) -> Self {
        Self {
            free: (0..num_rows as Row).map(Reverse).collect(),
            held: Vec::new(),
            total: num_rows,
        }
    }

    pub(crate) fn take(&mut self) -> Option<Row> {
        self.free.pop().map(|Reverse(row)| row)
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Rows that are missing to have `num_wanted` free.
    pub(crate) fn num_missing(&self, num_wanted: usize) -> usize {
        num_wanted.saturating_sub(self.num_free())
    }

    pub(crate) fn release(&mut self, row: Row) {
        self.free.push(Reverse(row));
    }

    /// Keeps the row of a finished request empty.
    pub(crate) fn hold(&mut self, row: Row) {
        self.held.push(row);
    }

    /// The batch has ended.
    pub(crate) fn release_held(&mut self) {
        while let Some(row) = self.held.pop() {
            self.release(row);
        }
    }

    /// Rows of requests that run, or that ended while a step in flight names them.
    pub(crate) fn num_used(&self) -> usize {
        self.num_occupied() - self.held.len()
    }

    /// Used and held.
    pub(crate) fn num_occupied(&self) -> usize {
        self.total - self.free.len()
    }

    /// Every row is free, held or used by exactly one of `used`.
    pub(crate) fn check_invariants(
        &self,
        used: impl Iterator<Item = Row>,
    ) -> Result<(), Violation> {
        let mut seen = vec![0; self.total];
        let free = self.free.iter().map(|&Reverse(row)| row);
        free.chain(self.held.iter().copied())
            .chain(used)
            .for_each(|row| seen[row as usize] += 1);
        for (row, &times) in seen.iter().enumerate() {
            ensure!(times == 1, "row {row} has {times} states");
        }
        Ok(())
    }
}
