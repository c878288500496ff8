//! Bindings of layers with a recurrent state.

use crate::{
    kernels::{numel, optional, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    bf16,
    recurrent::{
        RecurrentRows, conv, copies,
        delta::{self, Delta, Heads, VALUE_STEP},
        scan::{self, HEAD_STEP, Scan, ScanSizes},
    },
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
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

/// The tokens of a step, as rows of the batch.
struct Batch {
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
}

impl Batch {
    fn tensors(&self) -> [Argument<'_>; 3] {
        let (rows, starts, lens) = (&self.rows, &self.starts, &self.lens);
        [("rows", rows), ("starts", starts), ("lens", lens)]
    }

    fn sequences<'t>(&'t self, borrows: &mut Borrows) -> PyResult<RecurrentRows<'t>> {
        Ok(RecurrentRows {
            rows: borrows.slice("rows", &self.rows)?,
            starts: borrows.slice("starts", &self.starts)?,
            lens: borrows.slice("lens", &self.lens)?,
        })
    }
}

struct Conv {
    x: Tensor,
    gates: Option<(Tensor, Tensor)>,
    weight: Tensor,
    bias: Option<Tensor>,
    has_silu: bool,
    state: TensorMut,
    batch: Batch,
    out: TensorMut,
}

impl Call for Conv {
    fn work(&self) -> usize {
        let taps = self.weight.shape().first().copied().unwrap_or(0);
        numel(&self.x).saturating_mul(taps)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let own = [
            ("x", &self.x),
            ("weight", &self.weight),
            ("state", &*self.state),
            ("out", &*self.out),
        ];
        let gates = self.gates.iter();
        let gates =
            gates.flat_map(|(input, output)| [("input_gate", input), ("output_gate", output)]);
        let bias = self.bias.iter().map(|bias| ("bias", bias));
        let batch = self.batch.tensors();
        own.into_iter()
            .chain(gates)
            .chain(bias)
            .chain(batch)
            .collect()
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        let [taps, channels] = self.weight.dims("weight")?;
        let [_, past, width] = self.state.dims("state")?;
        if (past + 1, width) != (taps, channels) {
            let message = format!(
                "state: expected [rows, {}, {channels}], got {:?}",
                taps.saturating_sub(1),
                self.state.shape()
            );
            return Err(PyValueError::new_err(message));
        }
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<T>("x", &self.x)?;
            let gates = match &self.gates {
                Some((input, output)) => Some((
                    borrows.rows::<T>("input_gate", input)?,
                    borrows.rows::<T>("output_gate", output)?,
                )),
                None => None,
            };
            let weight = borrows.rows::<f32>("weight", &self.weight)?;
            let bias = optional::<f32>(&mut borrows, "bias", self.bias.as_ref())?;
            let sequences = self.batch.sequences(&mut borrows)?;
            let state = borrows.slice_mut::<f32>("state", &self.state)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            let conv = conv::Conv {
                x,
                gates,
                weight,
                bias,
                has_silu: self.has_silu,
            };
            Ok(conv::causal_conv(conv, sequences, state, out)?)
        })
    }
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
    let conv = Conv {
        x,
        gates,
        weight,
        bias,
        has_silu,
        state,
        batch: Batch { rows, starts, lens },
        out,
    };
    call(py, conv)
}

struct GatedDelta {
    qkv: Tensor,
    gate: Tensor,
    b_a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: f32,
    most_share: f32,
    in_turn: bool,
    state: TensorMut,
    batch: Batch,
    out: TensorMut,
}

impl GatedDelta {
    /// The sizes of the heads, which those of the other arguments follow from.
    fn heads(&self) -> PyResult<Heads> {
        let [_, num_value_heads, key_dim, value_dim] = self.state.dims("state")?;
        let [_, width] = self.qkv.dims("qkv")?;
        let values = num_value_heads.saturating_mul(value_dim);
        let keys = width.saturating_sub(values) / 2;
        Ok(Heads {
            num_key_heads: keys.checked_div(key_dim).unwrap_or(0),
            num_value_heads,
            key_dim,
            value_dim,
            interleaved_heads: self.in_turn,
        })
    }
}

impl Call for GatedDelta {
    fn work(&self) -> usize {
        let [_, heads @ ..] = self.state.shape() else {
            return 0;
        };
        let num_tokens = self.qkv.shape().first().copied().unwrap_or(0);
        let state: usize = heads.iter().product();
        state.saturating_mul(2 * num_tokens)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let own = [
            ("qkv", &self.qkv),
            ("gate", &self.gate),
            ("b_a", &self.b_a),
            ("rate", &self.rate),
            ("dt_bias", &self.dt_bias),
            ("norm_weight", &self.norm_weight),
            ("state", &*self.state),
            ("out", &*self.out),
        ];
        own.into_iter().chain(self.batch.tensors()).collect()
    }

    fn run(&self) -> PyResult<()> {
        let heads = self.heads()?;
        self.gate.dims::<2>("gate")?;
        self.b_a.dims::<2>("b_a")?;
        self.out.dims::<2>("out")?;
        with_dtype!(self.qkv, "qkv", |T| {
            let mut borrows = Borrows::default();
            let delta = Delta {
                heads,
                qkv: borrows.rows::<T>("qkv", &self.qkv)?,
                gate: borrows.rows::<T>("gate", &self.gate)?,
                b_a: borrows.rows::<T>("b_a", &self.b_a)?,
                rate: borrows.slice("rate", &self.rate)?,
                dt_bias: borrows.slice("dt_bias", &self.dt_bias)?,
                norm_weight: borrows.slice("norm_weight", &self.norm_weight)?,
                eps: self.eps,
                max_beta: self.most_share,
            };
            let sequences = self.batch.sequences(&mut borrows)?;
            let state = borrows.slice_mut::<f32>("state", &self.state)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            Ok(delta::gated_delta(delta, sequences, state, out)?)
        })
    }
}

/// Computes the gated delta rule of each head; `state` `[rows, num_value_heads, key_dim, value_dim]` moves on.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn gated_delta(
    py: Python<'_>,
    qkv: Tensor,
    gate: Tensor,
    b_a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: f32,
    most_share: f32,
    in_turn: bool,
    state: TensorMut,
    rows: Tensor,
    starts: Tensor,
    lens: Tensor,
    out: TensorMut,
) -> PyResult<()> {
    let delta = GatedDelta {
        qkv,
        gate,
        b_a,
        rate,
        dt_bias,
        norm_weight,
        eps,
        most_share,
        in_turn,
        state,
        batch: Batch { rows, starts, lens },
        out,
    };
    call(py, delta)
}

struct SelectiveScan {
    xbc: Tensor,
    dt: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    num_groups: usize,
    state: TensorMut,
    batch: Batch,
    out: TensorMut,
}

impl Call for SelectiveScan {
    fn work(&self) -> usize {
        let [_, heads @ ..] = self.state.shape() else {
            return 0;
        };
        let num_tokens = self.xbc.shape().first().copied().unwrap_or(0);
        let state: usize = heads.iter().product();
        state.saturating_mul(num_tokens)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let own = [
            ("xbc", &self.xbc),
            ("dt", &self.dt),
            ("rate", &self.rate),
            ("dt_bias", &self.dt_bias),
            ("skip", &self.skip),
            ("state", &*self.state),
            ("out", &*self.out),
        ];
        own.into_iter().chain(self.batch.tensors()).collect()
    }

    fn run(&self) -> PyResult<()> {
        let [_, num_heads, state_dim, head_dim] = self.state.dims("state")?;
        self.dt.dims::<2>("dt")?;
        self.out.dims::<2>("out")?;
        with_dtype!(self.xbc, "xbc", |T| {
            let mut borrows = Borrows::default();
            let scan = Scan {
                sizes: ScanSizes {
                    num_heads,
                    head_dim,
                    num_groups: self.num_groups,
                    state_dim,
                },
                xbc: borrows.rows::<T>("xbc", &self.xbc)?,
                dt: borrows.rows::<T>("dt", &self.dt)?,
                rate: borrows.slice("rate", &self.rate)?,
                dt_bias: borrows.slice("dt_bias", &self.dt_bias)?,
                skip: borrows.slice("skip", &self.skip)?,
            };
            let sequences = self.batch.sequences(&mut borrows)?;
            let state = borrows.slice_mut::<f32>("state", &self.state)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            Ok(scan::selective_scan(scan, sequences, state, out)?)
        })
    }
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
    let scan = SelectiveScan {
        xbc,
        dt,
        rate,
        dt_bias,
        skip,
        num_groups,
        state,
        batch: Batch { rows, starts, lens },
        out,
    };
    call(py, scan)
}

struct Copies {
    state: TensorMut,
    moves: Tensor,
}

impl Call for Copies {
    fn work(&self) -> usize {
        let row: usize = self.state.shape().iter().skip(1).product();
        row.saturating_mul(numel(&self.moves) / 2)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("state", &*self.state), ("moves", &self.moves)]
    }

    fn run(&self) -> PyResult<()> {
        let [_, _] = self.moves.dims("moves")?;
        let row_len = self.state.shape().iter().skip(1).product();
        let mut borrows = Borrows::default();
        let state = borrows.slice_mut::<f32>("state", &self.state)?;
        let moves = borrows.slice::<i32>("moves", &self.moves)?;
        Ok(copies::copy_states(state, row_len, moves)?)
    }
}

/// Copies rows of `state` `[rows, ...]`: `moves` int32 `[., 2]` has the target and the source of each.
#[pyfunction]
fn copy_states(py: Python<'_>, state: TensorMut, moves: Tensor) -> PyResult<()> {
    call(py, Copies { state, moves })
}
