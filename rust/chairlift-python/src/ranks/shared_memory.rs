//! Ranks on one machine: what they share, and how they meet in it.

use super::{error, num_rank_words};
use crate::error::RankError;
use chairlift_ranks::{self as ranks, Barrier, Broken, Cause, Limits};
use chairlift_tensor::{Borrows, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words between two that ranks write: the bytes of two cache lines, which processors fetch together.
pub(super) const STRIDE: usize = 32;

/// One rank's view of the memory that it shares with the others.
pub(super) struct SharedMemory {
    words: TensorMut,
    /// By the parity of the round.
    messages: [TensorMut; 2],
    /// Of each rank, by the parity of the round.
    areas: Vec<[TensorMut; 2]>,
    area_bytes: usize,
    rank: usize,
    num_messages: AtomicU32,
    _storages: Vec<Py<PyAny>>,
}

impl SharedMemory {
    pub(super) fn new(
        py: Python<'_>,
        words: TensorMut,
        messages: [TensorMut; 2],
        areas: Vec<[TensorMut; 2]>,
        rank: usize,
    ) -> PyResult<Self> {
        let mut area_bytes = usize::MAX;
        for area in areas.iter().flatten() {
            let [bytes] = area.dims("areas")?;
            area_bytes = area_bytes.min(bytes);
        }
        let mut storages = vec![words.storage(py)?];
        for tensor in messages.iter().chain(areas.iter().flatten()) {
            storages.push(tensor.storage(py)?);
        }
        let memory = Self {
            words,
            messages,
            areas,
            area_bytes,
            rank,
            num_messages: AtomicU32::new(0),
            _storages: storages,
        };
        memory.barrier()?;
        Ok(memory)
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn num_ranks(&self) -> usize {
        self.areas.len()
    }

    /// Bytes of the largest part.
    pub(super) fn max_part(&self) -> usize {
        self.area_bytes
    }

    pub(super) fn barrier(&self) -> PyResult<Barrier<'_, AtomicU32>> {
        let words = self.words.words("words")?;
        let num_ranks = self.num_ranks();
        Barrier::new(words, STRIDE, self.rank, num_ranks).ok_or_else(|| {
            let (rank, len, expected) = (self.rank, words.len(), num_rank_words(num_ranks));
            PyValueError::new_err(format!(
                "words, rank: expected {expected} words and one of {num_ranks} ranks, got {len} and {rank}"
            ))
        })
    }

    /// See `RankGroup.send`.
    pub(super) fn send(&self, message: &[i32], limits: Limits) -> PyResult<()> {
        let barrier = self.barrier()?;
        {
            let mut borrows = Borrows::default();
            let place = &self.messages[barrier.next_round().parity()];
            let place = borrows.slice_mut::<i32>("messages", place)?;
            let number = self.num_messages.load(Ordering::Relaxed);
            ranks::seal(place, number, message)
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            self.num_messages
                .store(number.wrapping_add(1), Ordering::Relaxed);
        }
        barrier.wait(limits).map(|_| ()).map_err(error)
    }

    /// Waits for a message, and gives it to `take`; None where the group was closed in order.
    pub(super) fn receive<R>(
        &self,
        limits: Limits,
        take: impl FnOnce(&[i32]) -> PyResult<R>,
    ) -> PyResult<Option<R>> {
        let barrier = self.barrier()?;
        let round = match barrier.wait(limits) {
            Ok(round) => round,
            Err(broken) if broken.cause == Cause::Closed => return Ok(None),
            Err(broken) => return Err(error(broken)),
        };
        let mut borrows = Borrows::default();
        let place = borrows.slice::<i32>("messages", &self.messages[round.parity()])?;
        let number = self.num_messages.fetch_add(1, Ordering::Relaxed);
        let message = ranks::open(place, number).map_err(|found| {
            barrier.poison(Cause::Disagreed, self.rank);
            RankError::new_err(found.to_string())
        })?;
        take(message).map(Some)
    }

    /// See [`ranks::Mesh::gather`].
    pub(super) fn gather(
        &self,
        lens: &[usize],
        limits: Limits,
        fill: impl FnOnce(&mut [u8]),
        mut take: impl FnMut(usize, &[u8]),
    ) -> PyResult<()> {
        let barrier = self.barrier()?;
        {
            let mut borrows = Borrows::default();
            let area = &self.areas[self.rank][barrier.next_round().parity()];
            fill(&mut borrows.slice_mut("areas", area)?[..lens[self.rank]]);
        }
        let parity = barrier.wait(limits).map_err(error)?.parity();
        for (rank, (area, len)) in self.areas.iter().zip(lens).enumerate() {
            let mut borrows = Borrows::default();
            take(rank, &borrows.slice("areas", &area[parity])?[..*len]);
        }
        Ok(())
    }

    pub(super) fn broken(&self) -> PyResult<Option<Broken>> {
        Ok(self.barrier()?.broken())
    }

    pub(super) fn poison(&self, cause: Cause, rank: usize) -> PyResult<()> {
        self.barrier()?.poison(cause, rank);
        Ok(())
    }
}
