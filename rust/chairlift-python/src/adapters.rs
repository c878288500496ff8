//! Bindings of adapters (LoRA): what each adds to a layer, and the layer's table of them.

use crate::{
    call::{Named, call, named},
    detach::detach,
};
use chairlift_kernels::{
    Element, bf16,
    gemm::low_rank::{self, RowAdapters, SortedRows},
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorElement, TensorMut};
use parking_lot::RwLock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Registers the classes with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LowRank>()?;
    module.add_class::<AdapterTable>()?;
    module.add_function(wrap_pyfunction!(low_rank_bytes, module)?)
}

/// Bytes that a part of a `LowRank` takes; `item_size` 4 is float32, 2 bfloat16.
#[pyfunction]
fn low_rank_bytes(
    out_features: usize,
    in_features: usize,
    rank: usize,
    item_size: usize,
) -> PyResult<usize> {
    let bytes = match item_size {
        4 => low_rank::LowRank::<f32>::part_bytes(out_features, in_features, rank),
        2 => low_rank::LowRank::<bf16>::part_bytes(out_features, in_features, rank),
        _ => {
            let message = format!("item_size: expected 4 or 2, got {item_size}");
            return Err(PyValueError::new_err(message));
        }
    };
    bytes.ok_or_else(|| PyValueError::new_err("rank: expected a layer that fits memory"))
}

/// What an adapter adds to one layer: `scale * x A^T B^T` for ranges of its outputs.
#[pyclass(frozen, module = "chairlift._core")]
struct LowRank {
    update: Update,
}

#[derive(Clone)]
enum Update {
    Float32(Arc<low_rank::LowRank<f32>>),
    Bfloat16(Arc<low_rank::LowRank<bf16>>),
}

/// The first output, the scale, A `[rank, in_features]` and B `[outputs, rank]`.
type Part = (usize, f32, Tensor, Tensor);

#[pymethods]
impl LowRank {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "a list of the Python method")]
    fn new(
        py: Python<'_>,
        in_features: usize,
        out_features: usize,
        parts: Vec<Part>,
    ) -> PyResult<Self> {
        let is_wide = parts
            .first()
            .is_none_or(|(_, _, a, _)| a.dtype() == Dtype::Float32);
        let update = if is_wide {
            Update::Float32(Arc::new(pack(py, in_features, out_features, &parts)?))
        } else {
            Update::Bfloat16(Arc::new(pack(py, in_features, out_features, &parts)?))
        };
        Ok(Self { update })
    }
}

fn pack<T: Element + TensorElement>(
    py: Python<'_>,
    in_features: usize,
    out_features: usize,
    parts: &[Part],
) -> PyResult<low_rank::LowRank<T>> {
    let mut update = low_rank::LowRank::new(in_features, out_features);
    for (first, scale, a, b) in parts {
        a.dims::<2>("a")?;
        b.dims::<2>("b")?;
        // Another thread may give a tensor other memory meanwhile.
        let (_a, _b) = (a.storage(py)?, b.storage(py)?);
        let mut borrows = Borrows::default();
        let (a, b) = (borrows.rows::<T>("a", a)?, borrows.rows::<T>("b", b)?);
        detach(py, || Ok(update.push(*first, *scale, a, b)?))?;
    }
    Ok(update)
}

/// The adapters of one layer by slot, from 1 on; what a slot holds may change between two calls.
#[pyclass(frozen, module = "chairlift._core")]
struct AdapterTable {
    slots: RwLock<Vec<Option<Update>>>,
}

#[pymethods]
impl AdapterTable {
    #[new]
    fn new(num_slots: usize) -> Self {
        Self {
            slots: RwLock::new(vec![None; num_slots]),
        }
    }

    /// Puts an update into a slot, or empties it.
    #[pyo3(signature = (slot, update))]
    fn set(&self, slot: usize, update: Option<&LowRank>) -> PyResult<()> {
        let mut slots = self.slots.write();
        let max_slots = slots.len();
        let Some(place) = slot.checked_sub(1).and_then(|place| slots.get_mut(place)) else {
            let message = format!("slot: expected 1 to {max_slots}, got {slot}");
            return Err(PyValueError::new_err(message));
        };
        *place = update.map(|update| update.update.clone());
        Ok(())
    }

    /// Adds to `out` `[R, out_features]` what the adapter of each row makes of `x` `[R, in_features]`: `adapters` int32
    /// `[T]` has the slot of each token, 0 for none; `selected` int32 `[R]` the token of each row.
    #[pyo3(signature = (x, out, adapters, selected=None))]
    fn add(
        table: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        out: TensorMut,
        adapters: Tensor,
        selected: Option<Tensor>,
    ) -> PyResult<()> {
        let (x, out, adapters, selected) = named!(x, out, adapters, selected);
        call(
            py,
            (table, x, out, adapters, selected),
            |(_, x, out, ..)| (x.numel() + out.numel()).saturating_mul(TYPICAL_RANK),
            |(table, x, out, adapters, selected)| {
                let borrows = &mut Borrows::default();
                let adapters = RowAdapters {
                    slots: adapters.slice(borrows)?,
                    selected: selected.optional_slice(borrows)?,
                };
                table.get().compute(x, out, &adapters)
            },
        )
    }
}

/// About the rank of an adapter: only whether a call is long depends on it.
const TYPICAL_RANK: usize = 16;

impl AdapterTable {
    fn compute(
        &self,
        x: &Named<Tensor>,
        out: &Named<TensorMut>,
        adapters: &RowAdapters<'_>,
    ) -> PyResult<()> {
        let slots = self.slots.read().clone();
        let rows = adapters.sorted(slots.len())?;
        if let Some((slot, _)) = rows
            .as_slice()
            .iter()
            .find(|(slot, _)| slots[slot - 1].is_none())
        {
            let message =
                format!("adapters: expected slots with an adapter, got {slot}, which has none");
            return Err(PyValueError::new_err(message));
        }
        let wide: Vec<_> = slots
            .iter()
            .map(|slot| match slot {
                Some(Update::Float32(update)) => Some(&**update),
                _ => None,
            })
            .collect();
        let narrow: Vec<_> = slots
            .iter()
            .map(|slot| match slot {
                Some(Update::Bfloat16(update)) => Some(&**update),
                _ => None,
            })
            .collect();
        add(x, out, &wide, &rows)?;
        add(x, out, &narrow, &rows)
    }
}

fn add<T: Element>(
    x: &Named<Tensor>,
    out: &Named<TensorMut>,
    updates: &[Option<&low_rank::LowRank<T>>],
    rows: &SortedRows,
) -> PyResult<()> {
    x.dims::<2>()?;
    out.dims::<2>()?;
    let borrows = &mut Borrows::default();
    macro_rules! add {
        ($X:ty, $O:ty) => {{
            let (x, out) = (x.rows::<$X>(borrows)?, out.rows_mut::<$O>(borrows)?);
            Ok(low_rank::add(updates, rows, x, out)?)
        }};
    }
    match (x.dtype(), out.dtype()) {
        (Dtype::Float32, Dtype::Float32) => add!(f32, f32),
        (Dtype::Float32, _) => add!(f32, bf16),
        (_, Dtype::Float32) => add!(bf16, f32),
        _ => add!(bf16, bf16),
    }
}
