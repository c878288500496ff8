//! Bindings of a group of ranks: processes that compute one model, on one machine or on several; how they meet is in
//! `chairlift-ranks`.
//!
//! A gather is a kernel call like any other, so that a recorded pass meets the other ranks without Python.

mod shared_memory;

use crate::{
    call::{Named, call, named, with_dtype},
    detach::detach,
    error::RankError,
};
use chairlift_kernels::{Rows, RowsMut};
use chairlift_ranks::{self as ranks, Broken, Cause, Key, Limits, Listener, MeetError, Mesh};
use chairlift_tensor::{Borrows, Tensor, TensorElement, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shared_memory::{STRIDE, SharedMemory};
use std::time::Duration;

/// Bytes of a part that goes over a connection; more rows are gathered in parts.
const MAX_PART: usize = 4 << 20;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RankGroup>()?;
    module.add_class::<RankListener>()?;
    module.add("RANK_MESSAGE_HEADER", ranks::HEADER)?;
    module.add_function(wrap_pyfunction!(num_rank_words, module)?)
}

/// Numbers that the barrier of so many ranks takes.
#[pyfunction]
fn num_rank_words(num_ranks: usize) -> usize {
    ranks::num_words(num_ranks) * STRIDE
}

/// How the ranks of a group meet.
enum Meeting {
    Memory(SharedMemory),
    Hosts(Mesh),
}

/// One rank of a group.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct RankGroup {
    meeting: Meeting,
    limits: Limits,
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
        let areas = areas.into_iter().map(<[TensorMut; 2]>::from).collect();
        let memory = SharedMemory::new(py, words, messages.into(), areas, rank)?;
        Ok(Self {
            meeting: Meeting::Memory(memory),
            limits: limits(spin_s, timeout_s)?,
        })
    }

    /// Joins a group whose rank 0 listens on another host.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        leader: &str,
        key: &[u8],
        rank: usize,
        join_timeout_s: f64,
        spin_s: f64,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let limits = limits(spin_s, timeout_s)?;
        let key = Key::new(key);
        Self::on_hosts(py, limits, join_timeout_s, |timeout| {
            ranks::join(leader, &key, rank, timeout)
        })
    }

    /// Sends a text to one rank on another host.
    fn tell(&self, py: Python<'_>, rank: usize, text: &str) -> PyResult<()> {
        let timeout = self.limits.timeout.unwrap_or_default();
        let mesh = self.mesh()?;
        py.detach(|| mesh.tell(rank, text.as_bytes(), timeout))
            .map_err(error)
    }

    /// Waits for a text of one rank on another host.
    fn hear(&self, py: Python<'_>, rank: usize, timeout_s: f64) -> PyResult<String> {
        let timeout = seconds("timeout_s", timeout_s)?;
        let mesh = self.mesh()?;
        let text = py.detach(|| mesh.hear(rank, timeout)).map_err(error)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
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
        detach(py, || match &self.meeting {
            Meeting::Memory(memory) => memory.send(message, self.limits),
            Meeting::Hosts(mesh) => {
                let bytes = bytemuck::cast_slice(message);
                mesh.send(bytes, self.limits).map_err(error)
            }
        })
    }

    /// Waits for the next message, however long; writes it to `out` int32 and gives its length, or None where the
    /// group was closed in order.
    fn receive(&self, py: Python<'_>, out: TensorMut) -> PyResult<Option<usize>> {
        let _storage = out.storage(py)?;
        let mut borrows = Borrows::default();
        let out = borrows.slice_mut::<i32>("out", &out)?;
        let limits = Limits {
            timeout: None,
            ..self.limits
        };
        detach(py, || match &self.meeting {
            Meeting::Memory(memory) => memory.receive(limits, |message| {
                let (room, got) = (out.len(), message.len());
                let out = out.get_mut(..got).ok_or_else(|| {
                    let message = format!("out: expected at least {got} numbers, got {room}");
                    PyValueError::new_err(message)
                })?;
                out.copy_from_slice(message);
                Ok(got)
            }),
            Meeting::Hosts(mesh) => {
                let out: &mut [u8] = bytemuck::cast_slice_mut(out);
                let received = mesh.receive(out.len(), limits, |message| {
                    out[..message.len()].copy_from_slice(message);
                    message.len() / size_of::<i32>()
                });
                match received {
                    Err(broken) if broken.cause == Cause::Closed => Ok(None),
                    other => other.map(Some).map_err(error),
                }
            }
        })
    }

    /// Ends the group in order: the others receive no message any more.
    fn close(&self) -> PyResult<()> {
        self.poison(Cause::Closed, self.rank())
    }

    /// Ends the group because a rank cannot go on; `has_ended` says that its process is gone.
    #[pyo3(signature = (rank, *, has_ended=false))]
    fn fail(&self, rank: usize, has_ended: bool) -> PyResult<()> {
        let cause = if has_ended {
            Cause::Died
        } else {
            Cause::Failed
        };
        self.poison(cause, rank)
    }

    /// Why the group has ended; None while it has not.
    #[getter]
    fn fault(&self) -> PyResult<Option<String>> {
        let broken = match &self.meeting {
            Meeting::Memory(memory) => memory.broken()?,
            Meeting::Hosts(mesh) => mesh.broken(),
        };
        Ok(broken.map(|broken| broken.to_string()))
    }
}

impl RankGroup {
    /// Waits until the ranks of all hosts are connected.
    fn on_hosts(
        py: Python<'_>,
        limits: Limits,
        join_timeout_s: f64,
        meet: impl FnOnce(Duration) -> Result<Mesh, MeetError> + Send,
    ) -> PyResult<Self> {
        let join_timeout = seconds("join_timeout_s", join_timeout_s)?;
        let mesh = py.detach(|| meet(join_timeout)).map_err(not_met)?;
        Ok(Self {
            meeting: Meeting::Hosts(mesh),
            limits,
        })
    }

    fn rank(&self) -> usize {
        match &self.meeting {
            Meeting::Memory(memory) => memory.rank(),
            Meeting::Hosts(mesh) => mesh.rank(),
        }
    }

    fn num_ranks(&self) -> usize {
        match &self.meeting {
            Meeting::Memory(memory) => memory.num_ranks(),
            Meeting::Hosts(mesh) => mesh.num_ranks(),
        }
    }

    fn mesh(&self) -> PyResult<&Mesh> {
        match &self.meeting {
            Meeting::Memory(_) => Err(PyValueError::new_err("the ranks are on one machine")),
            Meeting::Hosts(mesh) => Ok(mesh),
        }
    }

    fn poison(&self, cause: Cause, rank: usize) -> PyResult<()> {
        match &self.meeting {
            Meeting::Memory(memory) => memory.poison(cause, rank),
            Meeting::Hosts(mesh) => {
                mesh.poison(cause, rank);
                Ok(())
            }
        }
    }

    fn gather_rows(
        &self,
        x: &Named<Tensor>,
        out: &Named<TensorMut>,
        widths: &[usize],
    ) -> PyResult<()> {
        let ([num_rows, width], [num_out, whole]) = (x.dims()?, out.dims()?);
        let expected = (num_rows, Some(&width), self.num_ranks(), whole);
        let sum = widths.iter().sum();
        if (num_out, widths.get(self.rank()), widths.len(), sum) != expected {
            let message = format!(
                "widths: expected those of {} ranks, x [{num_rows}, {width}] and out [{num_out}, {whole}], got {widths:?}",
                self.num_ranks()
            );
            return Err(PyValueError::new_err(message));
        }
        with_dtype!(x, |T| {
            let borrows = &mut Borrows::default();
            let (x, out) = (x.rows::<T>(borrows)?, out.rows_mut::<T>(borrows)?);
            self.gather_parts(x, out, widths)
        })
    }

    /// Gathers as many rows at a time as a part may have.
    fn gather_parts<T: TensorElement>(
        &self,
        x: Rows<'_, T>,
        out: RowsMut<'_, T>,
        widths: &[usize],
    ) -> PyResult<()> {
        let max_part = match &self.meeting {
            Meeting::Memory(memory) => memory.max_part(),
            Meeting::Hosts(_) => MAX_PART,
        };
        let widths: Vec<_> = widths.iter().map(|width| width * size_of::<T>()).collect();
        let widest = widths.iter().max().copied().unwrap_or(0);
        let step = max_part.checked_div(widest).unwrap_or(x.len());
        if step == 0 && !x.is_empty() {
            let message = format!("areas: expected at least {widest} bytes, got {max_part}");
            return Err(PyValueError::new_err(message));
        }
        let stride = out.stride() * size_of::<T>();
        let out: &mut [u8] = bytemuck::cast_slice_mut(out.into_slice());
        for first in (0..x.len()).step_by(step.max(1)) {
            let rows = first..x.len().min(first + step);
            let lens: Vec<_> = widths.iter().map(|width| width * rows.len()).collect();
            let width = widths[self.rank()];
            let fill = |part: &mut [u8]| {
                for (row, place) in rows.clone().zip(part.chunks_exact_mut(width.max(1))) {
                    place.copy_from_slice(bytemuck::cast_slice(x.row(row)));
                }
            };
            let take = |rank: usize, part: &[u8]| {
                let (begin, width) = (widths[..rank].iter().sum::<usize>(), widths[rank]);
                for (row, numbers) in rows.clone().zip(part.chunks_exact(width.max(1))) {
                    let at = row * stride + begin;
                    out[at..at + width].copy_from_slice(numbers);
                }
            };
            match &self.meeting {
                Meeting::Memory(memory) => memory.gather(&lens, self.limits, fill, take)?,
                Meeting::Hosts(mesh) => {
                    mesh.gather(&lens, self.limits, fill, take).map_err(error)?;
                }
            }
        }
        Ok(())
    }
}

/// Where rank 0 waits for ranks of other hosts.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct RankListener {
    listener: Listener,
}

#[pymethods]
impl RankListener {
    #[new]
    fn new(address: &str, key: &[u8]) -> PyResult<Self> {
        let listener = Listener::bind(address, Key::new(key))?;
        Ok(Self { listener })
    }

    /// Where it listens, `HOST:PORT`.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.listener.address()?.to_string())
    }

    /// Waits until all other ranks have joined.
    fn meet(
        &self,
        py: Python<'_>,
        num_ranks: usize,
        join_timeout_s: f64,
        spin_s: f64,
        timeout_s: f64,
    ) -> PyResult<RankGroup> {
        let limits = limits(spin_s, timeout_s)?;
        RankGroup::on_hosts(py, limits, join_timeout_s, |timeout| {
            self.listener.meet(num_ranks, timeout)
        })
    }
}

fn limits(spin_s: f64, timeout_s: f64) -> PyResult<Limits> {
    Ok(Limits {
        spin: seconds("spin_s", spin_s)?,
        timeout: Some(seconds("timeout_s", timeout_s)?),
    })
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name}: expected seconds, got {value}")))
}

fn error(broken: Broken) -> PyErr {
    RankError::new_err(broken.to_string())
}

fn not_met(error: MeetError) -> PyErr {
    let message = error.to_string();
    match error {
        MeetError::Key | MeetError::Rank(_) => PyValueError::new_err(message),
        MeetError::Late(_) | MeetError::Io(_) => RankError::new_err(message),
    }
}
