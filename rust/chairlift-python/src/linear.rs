//! Bindings of the linear layers, and of the roofline that they are measured against.

use crate::{
    detach::detach,
    kernels::{numel, optional},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    bf16,
    gemm::{
        linear,
        quantized::{Quantization, QuantizedLinear},
    },
    roofline::{self, Arithmetic},
    tensor::{Borrows, Dtype, Tensor, TensorMut},
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the linear layers with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Linear>()?;
    module.add_function(wrap_pyfunction!(linear_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(read_memory, module)?)?;
    module.add_function(wrap_pyfunction!(multiply_in_registers, module)?)
}

/// Bytes that a `Linear` of these shapes takes; `item_size` 4 is float32, 2 bfloat16.
#[pyfunction]
#[pyo3(signature = (out_features, in_features, item_size, quantize=None))]
fn linear_bytes(
    out_features: usize,
    in_features: usize,
    item_size: usize,
    quantize: Option<&str>,
) -> PyResult<usize> {
    let bytes = match (quantization(quantize)?, item_size) {
        (Some(code), 4 | 2) => QuantizedLinear::packed_bytes(out_features, in_features, code),
        (None, 4) => linear::Linear::<f32>::packed_bytes(out_features, in_features),
        (None, 2) => linear::Linear::<bf16>::packed_bytes(out_features, in_features),
        _ => {
            let message = format!("item_size: expected 4 or 2, got {item_size}");
            return Err(PyValueError::new_err(message));
        }
    };
    bytes.ok_or_else(|| {
        let message = format!(
            "out_features, in_features: expected a layer that fits memory, got {out_features}, {in_features}"
        );
        PyValueError::new_err(message)
    })
}

fn quantization(name: Option<&str>) -> PyResult<Option<Quantization>> {
    match name {
        None => Ok(None),
        Some("int8") => Ok(Some(Quantization::Int8)),
        Some("int4") => Ok(Some(Quantization::Int4)),
        Some(other) => Err(PyValueError::new_err(format!(
            "quantize: expected int8, int4 or None, got {other}"
        ))),
    }
}

/// y = x W^T + b with weights packed once; the bits of a row do not depend on the others.
#[pyclass(frozen, module = "chairlift._core")]
struct Linear {
    layer: Layers,
}

enum Layers {
    Float32(linear::Linear<f32>),
    Bfloat16(linear::Linear<bf16>),
    Quantized(QuantizedLinear),
}

#[pymethods]
impl Linear {
    #[new]
    #[pyo3(signature = (weight, bias=None, quantize=None))]
    fn new(
        py: Python<'_>,
        weight: Tensor,
        bias: Option<Tensor>,
        quantize: Option<&str>,
    ) -> PyResult<Self> {
        weight.dims::<2>("weight")?;
        let code = quantization(quantize)?;
        // Another thread may give a tensor other memory meanwhile.
        let _weight = weight.storage(py)?;
        let _bias = bias.as_ref().map(|bias| bias.storage(py)).transpose()?;
        let mut borrows = Borrows::default();
        macro_rules! pack {
            ($T:ty, $Layer:ident) => {{
                let rows = borrows.rows::<$T>("weight", &weight)?;
                let bias = optional::<$T>(&mut borrows, "bias", bias.as_ref())?;
                detach(py, || {
                    Ok(match code {
                        Some(code) => Layers::Quantized(QuantizedLinear::new(rows, bias, code)?),
                        None => Layers::$Layer(linear::Linear::new(rows, bias)?),
                    })
                })?
            }};
        }
        let layer = match weight.dtype() {
            Dtype::Float32 => pack!(f32, Float32),
            Dtype::Bfloat16 => pack!(bf16, Bfloat16),
            _ => return Err(weight.wrong_dtype("weight", "float32 or bfloat16")),
        };
        Ok(Self { layer })
    }

    #[getter]
    fn in_features(&self) -> usize {
        match &self.layer {
            Layers::Float32(layer) => layer.in_features(),
            Layers::Bfloat16(layer) => layer.in_features(),
            Layers::Quantized(layer) => layer.in_features(),
        }
    }

    #[getter]
    fn out_features(&self) -> usize {
        match &self.layer {
            Layers::Float32(layer) => layer.out_features(),
            Layers::Bfloat16(layer) => layer.out_features(),
            Layers::Quantized(layer) => layer.out_features(),
        }
    }

    /// Computes `out` `[T, out_features]` from `x` `[T, in_features]`.
    fn forward(this: Py<Self>, py: Python<'_>, x: Tensor, out: TensorMut) -> PyResult<()> {
        call(
            py,
            Forward {
                linear: this,
                x,
                out,
            },
        )
    }
}

struct Forward {
    linear: Py<Linear>,
    x: Tensor,
    out: TensorMut,
}

impl Call for Forward {
    fn work(&self) -> usize {
        // Each input meets each output of its row.
        numel(&self.x).saturating_mul(self.linear.get().out_features())
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("x", &self.x), ("out", &*self.out)]
    }

    fn run(&self) -> PyResult<()> {
        let Self { linear, x, out } = self;
        x.dims::<2>("x")?;
        out.dims::<2>("out")?;
        let mut borrows = Borrows::default();
        macro_rules! forward {
            ($layer:expr, $In:ty, $Out:ty) => {{
                let x = borrows.rows::<$In>("x", x)?;
                let out = borrows.rows_mut::<$Out>("out", out)?;
                $layer.forward(x, out)?;
            }};
        }
        match (&linear.get().layer, x.dtype(), out.dtype()) {
            (Layers::Float32(layer), _, _) => forward!(layer, f32, f32),
            (Layers::Bfloat16(layer), _, Dtype::Float32) => forward!(layer, bf16, f32),
            (Layers::Bfloat16(layer), _, _) => forward!(layer, bf16, bf16),
            (Layers::Quantized(layer), Dtype::Float32, _) => forward!(layer, f32, f32),
            (Layers::Quantized(layer), _, Dtype::Float32) => forward!(layer, bf16, f32),
            (Layers::Quantized(layer), _, _) => forward!(layer, bf16, bf16),
        }
        Ok(())
    }
}

/// Reads all of `words` with all threads: what memory gives at most.
#[pyfunction]
fn read_memory(py: Python<'_>, words: Tensor) -> PyResult<u32> {
    let _storage = words.storage(py)?;
    let words = Borrows::default().slice::<i32>("words", &words)?;
    detach(py, || Ok(roofline::read_memory(words)))
}

/// Rounds of [`multiply_in_registers`] at most: operations of all threads are counted in 64 bits.
const MAX_ROUNDS: usize = 1 << 32;

/// Multiplies and adds in registers with all threads; gives the number of operations.
#[pyfunction]
fn multiply_in_registers(py: Python<'_>, arithmetic: &str, rounds: usize) -> PyResult<usize> {
    let arithmetic = match arithmetic {
        "float32" => Arithmetic::Float32,
        "bfloat16" => Arithmetic::Bfloat16,
        "int8" => Arithmetic::Int8,
        "int4" => Arithmetic::Int4,
        other => {
            return Err(PyValueError::new_err(format!(
                "arithmetic: expected float32, bfloat16, int8 or int4, got {other}"
            )));
        }
    };
    if rounds > MAX_ROUNDS {
        let message = format!("rounds: expected at most {MAX_ROUNDS}, got {rounds}");
        return Err(PyValueError::new_err(message));
    }
    detach(py, || {
        Ok(roofline::multiply_in_registers(arithmetic, rounds))
    })
}
