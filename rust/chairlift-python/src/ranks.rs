//! Bindings of the memory that the processes of one model share; what meets there is in `chairlift-ranks`.
//!
//! A gather is a kernel call like any other, so that a recorded pass meets the other ranks without Python.

use crate::{
    call::{Named, call, named, with_dtype},
    detach::detach,
    error::RankError,
};
use chairlift_kernels::{Rows, RowsMut};
use chairlift_ranks::{self as ranks, Barrier, Broken, Cause, Limits, Round};
use chairlift_tensor::{Borrows, Tensor, TensorElement, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Words between two that ranks write: the bytes of two cache lines, which processors fetch together.
const STRIDE: usize = 32;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RankGroup>()?;
    module.add("RANK_MESSAGE_HEADER", ranks::HEADER)?;
    module.add_function(wrap_pyfunction!(num_rank_words, module)?)
}

/// Numbers that the barrier of so many ranks takes.
#[pyfunction]
fn num_rank_words(num_ranks: usize) -> usize {
    ranks::num_words(num_ranks) * STRIDE
}

/// One rank's view of the memory that it shares with the others.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct RankGroup {
    words: TensorMut,
    /// By the parity of the round.
    messages: [TensorMut; 2],
    /// Of each rank, by the parity of the round.
    areas: Vec<[TensorMut; 2]>,
    area_bytes: usize,
    rank: usize,
    limits: Limits,
    num_messages: AtomicU32,
    _storages: Vec<Py<PyAny>>,
}

#[pymethods]
impl RankGroup {
    #[new]
    fn new(
        py: Python<'_>,
        words: TensorMut,
        messages: (TensorMut, TensorMut),
        areas: Vec<(TensorMut, TensorMut)>,
        rank: usize,
        spin_s: f64,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let messages = <[TensorMut; 2]>::from(messages);
        let areas: Vec<_> = areas.into_iter().map(<[TensorMut; 2]>::from).collect();
        let [spin, timeout] = [seconds("spin_s", spin_s)?, seconds("timeout_s", timeout_s)?];
        let mut area_bytes = usize::MAX;
        for area in areas.iter().flatten() {
            let [bytes] = area.dims("areas")?;
            area_bytes = area_bytes.min(bytes);
        }
        let mut storages = vec![words.storage(py)?];
        for tensor in messages.iter().chain(areas.iter().flatten()) {
            storages.push(tensor.storage(py)?);
        }
        let group = Self {
            words,
            messages,
            areas,
            area_bytes,
            rank,
            limits: Limits {
                spin,
                timeout: Some(timeout),
            },
            num_messages: AtomicU32::new(0),
            _storages: storages,
        };
        group.barrier()?;
        Ok(group)
    }

    /// Computes `out` `[T, sum(widths)]` from the `x` `[T, widths[rank]]` of all ranks, side by side.
    fn gather(
        group: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        out: TensorMut,
        widths: Vec<usize>,
    ) -> PyResult<()> {
        let (x, out) = named!(x, out);
        call(
            py,
            (group, x, out),
            // It waits for others: never with the interpreter.
            |_| usize::MAX,
            move |(group, x, out)| group.get().gather_rows(x, out, &widths),
        )
    }

    /// Sends a message, int32 `[N]`, to every other rank.
    fn send(&self, py: Python<'_>, message: Tensor) -> PyResult<()> {
        let _storage = message.storage(py)?;
        let mut borrows = Borrows::default();
        let message = borrows.slice::<i32>("message", &message)?;
        let barrier = self.barrier()?;
        let place = &self.messages[barrier.next_round().parity()];
        let place = borrows.slice_mut::<i32>("messages", place)?;
        let number = self.num_messages.load(Ordering::Relaxed);
        ranks::seal(place, number, message)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.num_messages
            .store(number.wrapping_add(1), Ordering::Relaxed);
        detach(py, || self.meet(self.limits).map(|_| ()))
    }

    /// Waits for the next message, however long; writes it to `out` int32 and gives its length, or None where the
    /// group was closed in order.
    fn receive(&self, py: Python<'_>, out: TensorMut) -> PyResult<Option<usize>> {
        let _storage = out.storage(py)?;
        let limits = Limits {
            timeout: None,
            ..self.limits
        };
        let barrier = self.barrier()?;
        let round = match py.detach(|| barrier.wait(limits)) {
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
        let out = borrows.slice_mut::<i32>("out", &out)?;
        let room = out.len();
        let out = out.get_mut(..message.len()).ok_or_else(|| {
            let got = message.len();
            PyValueError::new_err(format!("out: expected at least {got} numbers, got {room}"))
        })?;
        out.copy_from_slice(message);
        Ok(Some(message.len()))
    }

    /// Ends the group in order: the others receive no message any more.
    fn close(&self) -> PyResult<()> {
        self.barrier()?.poison(Cause::Closed, self.rank);
        Ok(())
    }

    /// Ends the group because a rank cannot go on; `has_ended` says that its process is gone.
    #[pyo3(signature = (rank, *, has_ended=false))]
    fn fail(&self, rank: usize, has_ended: bool) -> PyResult<()> {
        let cause = if has_ended {
            Cause::Died
        } else {
            Cause::Failed
        };
        self.barrier()?.poison(cause, rank);
        Ok(())
    }

    /// Why the group has ended; None while it has not.
    #[getter]
    fn fault(&self) -> PyResult<Option<String>> {
        let broken = self.barrier()?.broken();
        Ok(broken.map(|broken| broken.to_string()))
    }
}

impl RankGroup {
    fn barrier(&self) -> PyResult<Barrier<'_, AtomicU32>> {
        let words = self.words.words("words")?;
        let num_ranks = self.areas.len();
        Barrier::new(words, STRIDE, self.rank, num_ranks).ok_or_else(|| {
            let (rank, len) = (self.rank, words.len());
            PyValueError::new_err(format!(
                "words, rank: expected the words of {num_ranks} ranks and one of these, got {len} and {rank}"
            ))
        })
    }

    fn meet(&self, limits: Limits) -> PyResult<Round> {
        self.barrier()?.wait(limits).map_err(error)
    }

    fn gather_rows(
        &self,
        x: &Named<Tensor>,
        out: &Named<TensorMut>,
        widths: &[usize],
    ) -> PyResult<()> {
        let ([num_rows, width], [num_out, whole]) = (x.dims()?, out.dims()?);
        let expected = (num_rows, Some(&width), self.areas.len(), whole);
        let sum = widths.iter().sum();
        if (num_out, widths.get(self.rank), widths.len(), sum) != expected {
            let message = format!(
                "widths: expected those of {} ranks, x [{num_rows}, {width}] and out [{num_out}, {whole}], got {widths:?}",
                self.areas.len()
            );
            return Err(PyValueError::new_err(message));
        }
        with_dtype!(x, |T| {
            let borrows = &mut Borrows::default();
            let (x, out) = (x.rows::<T>(borrows)?, out.rows_mut::<T>(borrows)?);
            self.gather_parts(x, out, widths)
        })
    }

    /// Gathers as many rows at a time as an area holds.
    fn gather_parts<T: TensorElement>(
        &self,
        x: Rows<'_, T>,
        out: RowsMut<'_, T>,
        widths: &[usize],
    ) -> PyResult<()> {
        let row_bytes = widths
            .iter()
            .max()
            .map_or(0, |widest| widest * size_of::<T>());
        let step = self.area_bytes.checked_div(row_bytes).unwrap_or(x.len());
        if step == 0 && !x.is_empty() {
            let message = format!(
                "areas: expected at least {row_bytes} bytes, got {}",
                self.area_bytes
            );
            return Err(PyValueError::new_err(message));
        }
        let barrier = self.barrier()?;
        let stride = out.stride();
        let out = out.into_slice();
        for first in (0..x.len()).step_by(step.max(1)) {
            let rows = first..x.len().min(first + step);
            let width = widths[self.rank];
            {
                let mut borrows = Borrows::default();
                let area = &self.areas[self.rank][barrier.next_round().parity()];
                let area = numbers_mut::<T>(borrows.slice_mut("areas", area)?);
                for (row, place) in rows.clone().zip(area.chunks_exact_mut(width.max(1))) {
                    place[..width].copy_from_slice(x.row(row));
                }
            }
            let parity = barrier.wait(self.limits).map_err(error)?.parity();
            let mut begin = 0;
            for (area, width) in self.areas.iter().zip(widths) {
                let mut borrows = Borrows::default();
                let area = numbers::<T>(borrows.slice("areas", &area[parity])?);
                for (row, numbers) in rows.clone().zip(area.chunks_exact((*width).max(1))) {
                    let at = row * stride + begin;
                    out[at..at + width].copy_from_slice(&numbers[..*width]);
                }
                begin += width;
            }
        }
        Ok(())
    }
}

/// The numbers that whole fit into bytes, which begin where each of them may.
fn numbers<T: TensorElement>(bytes: &[u8]) -> &[T] {
    let len = bytes.len() / size_of::<T>() * size_of::<T>();
    bytemuck::cast_slice(&bytes[..len])
}

fn numbers_mut<T: TensorElement>(bytes: &mut [u8]) -> &mut [T] {
    let len = bytes.len() / size_of::<T>() * size_of::<T>();
    bytemuck::cast_slice_mut(&mut bytes[..len])
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name}: expected seconds, got {value}")))
}

fn error(broken: Broken) -> PyErr {
    RankError::new_err(broken.to_string())
}
