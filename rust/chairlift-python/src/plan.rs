//! The layout of a plan, and `apply_plan`: the runner's tables and inputs as slices.

use chairlift_core::{
    plan,
    row_tables::{self, RowTables, StepInputs},
};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};

/// Names and numbers of a plan, for those that read one in Python.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let sections = plan::SECTIONS.iter();
    let sections = sections.map(|section| (section.name, section.width, section.length));
    let sections = PyTuple::new(module.py(), sections.collect::<Vec<_>>())?;
    module.add("PLAN_HEADER_LEN", plan::HEADER)?;
    module.add("PLAN_SECTIONS", sections)?;
    module.add("LOAD_STATE", plan::LOAD_STATE)?;
    module.add("COPY_STATE", plan::COPY_STATE)?;
    module.add("SAVE_STATE", plan::SAVE_STATE)
}

/// Applies a plan to the runner's tables and derives the inputs of the forward pass.
#[pyfunction]
#[pyo3(signature = (plan, block_size, *, computed, last_token, row_slot, row_index, row_adapter,
    block_tables, rows, input_ids, positions, slot_mapping, query_start_loc, seq_lens, sample_rows, score_rows,
    score_targets, adapters))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub(crate) fn apply_plan(
    plan: Tensor,
    block_size: usize,
    computed: TensorMut,
    last_token: Tensor,
    row_slot: TensorMut,
    row_index: TensorMut,
    row_adapter: TensorMut,
    block_tables: TensorMut,
    rows: TensorMut,
    input_ids: TensorMut,
    positions: TensorMut,
    slot_mapping: TensorMut,
    query_start_loc: TensorMut,
    seq_lens: TensorMut,
    sample_rows: TensorMut,
    score_rows: TensorMut,
    score_targets: TensorMut,
    adapters: TensorMut,
) -> PyResult<(usize, usize, usize, usize, usize)> {
    let [num_kv_groups, num_rows, _] = block_tables.dims("block_tables")?;
    for (name, table) in [
        ("computed", &*computed),
        ("last_token", &last_token),
        ("row_slot", &row_slot),
        ("row_index", &row_index),
        ("row_adapter", &row_adapter),
    ] {
        if table.shape() != [num_rows] {
            let got = table.shape();
            return Err(PyValueError::new_err(format!(
                "{name}: expected shape [{num_rows}] as block_tables has rows, got {got:?}"
            )));
        }
    }
    if num_kv_groups == 0 || slot_mapping.dims::<2>("slot_mapping")?[0] != num_kv_groups {
        return Err(PyValueError::new_err(format!(
            "slot_mapping: expected {num_kv_groups} lines, one per KV group"
        )));
    }
    let mut borrows = Borrows::default();
    let plan = borrows.slice::<i32>("plan", &plan)?;
    let mut tables = RowTables {
        computed: borrows.slice_mut("computed", &computed)?,
        last_token: borrows.slice("last_token", &last_token)?,
        row_slot: borrows.slice_mut("row_slot", &row_slot)?,
        row_index: borrows.slice_mut("row_index", &row_index)?,
        row_adapter: borrows.slice_mut("row_adapter", &row_adapter)?,
        block_tables: borrows.slice_mut("block_tables", &block_tables)?,
        num_kv_groups,
    };
    let mut inputs = StepInputs {
        rows: borrows.slice_mut("rows", &rows)?,
        input_ids: borrows.slice_mut("input_ids", &input_ids)?,
        positions: borrows.slice_mut("positions", &positions)?,
        slot_mapping: borrows.slice_mut("slot_mapping", &slot_mapping)?,
        query_start_loc: borrows.slice_mut("query_start_loc", &query_start_loc)?,
        seq_lens: borrows.slice_mut("seq_lens", &seq_lens)?,
        sample_rows: borrows.slice_mut("sample_rows", &sample_rows)?,
        score_rows: borrows.slice_mut("score_rows", &score_rows)?,
        score_targets: borrows.slice_mut("score_targets", &score_targets)?,
        adapters: borrows.slice_mut("adapters", &adapters)?,
    };
    let shape = row_tables::apply_plan(plan, block_size, &mut tables, &mut inputs);
    let shape = shape.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((
        shape.num_rows,
        shape.num_tokens,
        shape.num_samples,
        shape.num_scores,
        shape.num_adapted,
    ))
}
