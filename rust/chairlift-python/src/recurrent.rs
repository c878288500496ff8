//! Bindings of layers with a recurrent state.

use crate::call::{Named, call, named, with_dtype};
use chairlift_kernels::recurrent::{
    RecurrentRows, conv, copies,
    delta::{self, Delta, Heads, VALUE_STEP},
    scan::{self, HEAD_STEP, Scan, ScanSizes},
};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MAX_CONV_TAPS", conv::MAX_TAPS)?;
    module.add("DELTA_VALUE_STEP", VALUE_STEP)?;
    module.add_function(wrap_pyfunction!(causal_conv, module)?)?;
    module.add_function(wrap_pyfunction!(copy_states, module)?)?;
    module.add("SCAN_HEAD_STEP", HEAD_STEP)?;
    module.add_function(wrap_pyfunction!(gated_delta, module)?)?;
    module.add_function(wrap_pyfunction!(selective_scan, module)?)
}

/// The tokens of a step, as rows of the batch: rows, starts and lens.
type Batch = (Named<Tensor>, Named<Tensor>, Named<Tensor>);

fn sequences<'t>(
    (rows, starts, lens): &'t Batch,
    borrows: &mut Borrows,
) -> PyResult<RecurrentRows<'t>> {
    Ok(RecurrentRows {
        rows: rows.slice(borrows)?,
        starts: starts.slice(borrows)?,
        lens: lens.slice(borrows)?,
    })
}

/// Convolves each channel of `x` `[T, C]` along the tokens of its row; `state` `[rows, K - 1, C]` moves on.
#[pyfunction]
#[pyo3(signature = (x, weight, state, rows, starts, lens, out, *, bias=None, gates=None, has_silu=false))]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn causal_conv(
    py: Python<'_>,
    x: Tensor,
    weight: Tensor,
    state: TensorMut,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: TensorMut,
    bias: Option<Tensor>,
    gates: Option<(Tensor, Tensor)>,
    has_silu: bool,
) -> PyResult<()> {
    let gates = gates.map(|(input_gate, output_gate)| named!(input_gate, output_gate));
    let batch = named!(rows, starts, lens);
    let (x, weight, state, out, bias) = named!(x, weight, state, out, bias);
    call(
        py,
        (x, weight, state, out, gates, bias, batch),
        |(x, weight, ..)| {
            let taps = weight.shape().first().copied().unwrap_or(0);
            x.numel().saturating_mul(taps)
        },
        move |(x, weight, state, out, gates, bias, batch)| {
            x.dims::<2>()?;
            let [taps, channels] = weight.dims()?;
            let [_, past, width] = state.dims()?;
            if (past + 1, width) != (taps, channels) {
                let (past, got) = (taps.saturating_sub(1), state.shape());
                let message = format!("state: expected [rows, {past}, {channels}], got {got:?}");
                return Err(PyValueError::new_err(message));
            }
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let conv = conv::Conv {
                    x: x.rows::<T>(borrows)?,
                    gates: match gates {
                        Some((input, output)) => {
                            Some((input.rows(borrows)?, output.rows(borrows)?))
                        }
                        None => None,
                    },
                    weight: weight.rows(borrows)?,
                    bias: bias.optional_slice(borrows)?,
                    has_silu,
                };
                let sequences = sequences(batch, borrows)?;
                let state = state.slice_mut(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(conv::causal_conv(conv, sequences, state, out)?)
            })
        },
    )
}

/// Multiply-adds per token that update the state of all heads: `state` is `[rows, heads, ...]`.
fn state_work(state: &Named<TensorMut>, x: &Named<Tensor>, work_of_number: usize) -> usize {
    let [_, heads @ ..] = state.shape() else {
        return 0;
    };
    let num_tokens = x.shape().first().copied().unwrap_or(0);
    let elements: usize = heads.iter().product();
    elements.saturating_mul(work_of_number * num_tokens)
}

/// Computes the gated delta rule of each head; `state` `[rows, num_value_heads, key_dim, value_dim]` moves on.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn gated_delta(
    py: Python<'_>,
    qkv: Tensor,
    gate: Tensor,
    beta_alpha: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: f32,
    max_beta: f32,
    interleaved_heads: bool,
    state: TensorMut,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: TensorMut,
) -> PyResult<()> {
    let weights = named!(rate, dt_bias, norm_weight);
    let batch = named!(rows, starts, lens);
    let (qkv, gate, beta_alpha, state, out) = named!(qkv, gate, beta_alpha, state, out);
    call(
        py,
        (qkv, gate, beta_alpha, weights, state, out, batch),
        |(qkv, _, _, _, state, ..)| state_work(state, qkv, 2),
        move |(qkv, gate, beta_alpha, (rate, dt_bias, norm_weight), state, out, batch)| {
            // The sizes of the other arguments follow from those of these two.
            let [_, num_value_heads, key_dim, value_dim] = state.dims()?;
            let [_, width] = qkv.dims()?;
            let values = num_value_heads.saturating_mul(value_dim);
            let keys = width.saturating_sub(values) / 2;
            let heads = Heads {
                num_key_heads: keys.checked_div(key_dim).unwrap_or(0),
                num_value_heads,
                key_dim,
                value_dim,
                interleaved_heads,
            };
            gate.dims::<2>()?;
            beta_alpha.dims::<2>()?;
            out.dims::<2>()?;
            with_dtype!(qkv, |T| {
                let borrows = &mut Borrows::default();
                let delta = Delta {
                    heads,
                    qkv: qkv.rows::<T>(borrows)?,
                    gate: gate.rows(borrows)?,
                    beta_alpha: beta_alpha.rows(borrows)?,
                    rate: rate.slice(borrows)?,
                    dt_bias: dt_bias.slice(borrows)?,
                    norm_weight: norm_weight.slice(borrows)?,
                    eps,
                    max_beta,
                };
                let sequences = sequences(batch, borrows)?;
                let state = state.slice_mut(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(delta::gated_delta(delta, sequences, state, out)?)
            })
        },
    )
}

/// Computes the selective scan of each head; `state` `[rows, num_heads, state_dim, head_dim]` moves on.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn selective_scan(
    py: Python<'_>,
    xbc: Tensor,
    dt: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    num_groups: usize,
    state: TensorMut,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: TensorMut,
) -> PyResult<()> {
    let weights = named!(rate, dt_bias, skip);
    let batch = named!(rows, starts, lens);
    let (xbc, dt, state, out) = named!(xbc, dt, state, out);
    call(
        py,
        (xbc, dt, weights, state, out, batch),
        |(xbc, _, _, state, ..)| state_work(state, xbc, 1),
        move |(xbc, dt, (rate, dt_bias, skip), state, out, batch)| {
            let [_, num_heads, state_dim, head_dim] = state.dims()?;
            dt.dims::<2>()?;
            out.dims::<2>()?;
            with_dtype!(xbc, |T| {
                let borrows = &mut Borrows::default();
                let scan = Scan {
                    sizes: ScanSizes {
                        num_heads,
                        head_dim,
                        num_groups,
                        state_dim,
                    },
                    xbc: xbc.rows::<T>(borrows)?,
                    dt: dt.rows(borrows)?,
                    rate: rate.slice(borrows)?,
                    dt_bias: dt_bias.slice(borrows)?,
                    skip: skip.slice(borrows)?,
                };
                let sequences = sequences(batch, borrows)?;
                let state = state.slice_mut(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(scan::selective_scan(scan, sequences, state, out)?)
            })
        },
    )
}

/// Copies rows of `state` `[rows, ...]`: `moves` int32 `[., 2]` has the target and the source of each.
#[pyfunction]
fn copy_states(py: Python<'_>, state: TensorMut, moves: Tensor) -> PyResult<()> {
    let row_len = |state: &Named<TensorMut>| state.shape().iter().skip(1).product::<usize>();
    call(
        py,
        named!(state, moves),
        move |(state, moves)| row_len(state).saturating_mul(moves.numel() / 2),
        move |(state, moves)| {
            let [_, _] = moves.dims()?;
            let borrows = &mut Borrows::default();
            let row_len = row_len(state);
            let state = state.slice_mut::<f32>(borrows)?;
            let moves = moves.slice(borrows)?;
            Ok(copies::copy_states(state, row_len, moves)?)
        },
    )
}
