//! Bindings of the linear layers, and of the roofline that they are measured against.

use crate::{
    call::{Named, call, named},
    detach::detach,
};
use chairlift_kernels::{
    bf16,
    gemm::{
        blocks::{self, BlockType},
        grouped::GroupedLinear,
        layer::{Layer, round_rows},
        linear,
        quantize::Quantization,
        rotation::rotate_rows,
        weight_format::WeightFormat,
    },
    roofline::{self, Arithmetic},
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::{collections::BTreeMap, sync::Arc};

/// Registers the linear layers with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Linear>()?;
    module.add(
        "BLOCK_TYPES",
        BTreeMap::from(BlockType::NAMES.map(|(name, block_type)| (name, block_type.block()))),
    )?;
    module.add_function(wrap_pyfunction!(row_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(row_weights, module)?)?;
    module.add_function(wrap_pyfunction!(dequantize, module)?)?;
    module.add_function(wrap_pyfunction!(quantize, module)?)?;
    module.add_function(wrap_pyfunction!(rotate, module)?)?;
    module.add_function(wrap_pyfunction!(linear_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(read_memory, module)?)?;
    module.add_function(wrap_pyfunction!(multiply_in_registers, module)?)
}

/// Bytes that a `Linear` of these shapes takes; `item_size` 4 is float32, 2 bfloat16; `weight_format` is what
/// `quantize` or `block_type` of such a layer would be.
#[pyfunction]
#[pyo3(signature = (out_features, in_features, item_size, weight_format=None))]
fn linear_bytes(
    out_features: usize,
    in_features: usize,
    item_size: usize,
    weight_format: Option<&str>,
) -> PyResult<usize> {
    let format = weight_format.map(packed_format).transpose()?;
    let bytes = match (format, item_size) {
        (Some(format), 4 | 2) => format.packed_bytes(out_features, in_features),
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

fn quantization(name: &str) -> PyResult<Quantization> {
    match name {
        "int8" => Ok(Quantization::Int8),
        "int4" => Ok(Quantization::Int4),
        other => Err(PyValueError::new_err(format!(
            "quantize: expected int8, int4 or None, got {other}"
        ))),
    }
}

fn block_type(name: &str) -> PyResult<BlockType> {
    let found = BlockType::NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, block_type)| *block_type).ok_or_else(|| {
        let known = BlockType::NAMES.map(|(known, _)| known).join(", ");
        PyValueError::new_err(format!("block_type: expected one of {known}, got {name}"))
    })
}

fn packed_format(name: &str) -> PyResult<WeightFormat> {
    if let Ok(quantization) = quantization(name) {
        return Ok(quantization.format());
    }
    block_type(name).map(BlockType::format).map_err(|_| {
        let known = BlockType::NAMES.map(|(known, _)| known).join(", ");
        let message = format!("weight_format: expected int8, int4, {known} or None, got {name}");
        PyValueError::new_err(message)
    })
}

/// Bytes of a row of so many weights in blocks; None if they are no whole blocks.
#[pyfunction]
fn row_bytes(block_type: &str, num_weights: usize) -> PyResult<Option<usize>> {
    Ok(self::block_type(block_type)?.row_bytes(num_weights))
}

/// Weights of a row of so many bytes in blocks; None if they are no whole blocks.
#[pyfunction]
fn row_weights(block_type: &str, num_bytes: usize) -> PyResult<Option<usize>> {
    Ok(self::block_type(block_type)?.row_weights(num_bytes))
}

/// Writes the weights of `blocks` uint8 `[N, bytes of a row]` to `out` float32 `[N, K]`.
#[pyfunction]
fn dequantize(py: Python<'_>, blocks: Tensor, block_type: &str, out: TensorMut) -> PyResult<()> {
    blocks.dims::<2>("blocks")?;
    out.dims::<2>("out")?;
    let block_type = self::block_type(block_type)?;
    // Another thread may give a tensor other memory meanwhile.
    let _blocks = blocks.storage(py)?;
    let _out = out.storage(py)?;
    let mut borrows = Borrows::default();
    let rows = borrows.rows::<u8>("blocks", &blocks)?;
    let out = borrows.rows_mut::<f32>("out", &out)?;
    detach(py, || Ok(blocks::dequantize(rows, block_type, out)?))
}

/// Quantizes `weight` float32 `[N, K]` to blocks of a type that `--quantize` or `chairlift quantize` makes, in `out`
/// uint8 `[N, bytes of a row]`.
#[pyfunction]
fn quantize(py: Python<'_>, weight: Tensor, block_type: &str, out: TensorMut) -> PyResult<()> {
    weight.dims::<2>("weight")?;
    out.dims::<2>("out")?;
    let block_type = self::block_type(block_type)?;
    // Another thread may give a tensor other memory meanwhile.
    let _weight = weight.storage(py)?;
    let _out = out.storage(py)?;
    let mut borrows = Borrows::default();
    let rows = borrows.rows::<f32>("weight", &weight)?;
    let out = borrows.rows_mut::<u8>("out", &out)?;
    detach(py, || Ok(blocks::quantize(rows, block_type, out)?))
}

/// Rotates the rows of `x` float32 `[N, K]` in place, as the inputs and weights of rotated layers are.
#[pyfunction]
fn rotate(py: Python<'_>, x: TensorMut) -> PyResult<()> {
    x.dims::<2>("x")?;
    // Another thread may give a tensor other memory meanwhile.
    let _x = x.storage(py)?;
    let mut borrows = Borrows::default();
    let rows = borrows.rows_mut::<f32>("x", &x)?;
    detach(py, || {
        rotate_rows(rows);
        Ok(())
    })
}

/// y = x W^T + b with weights packed once; the bits of a row do not depend on the others.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct Linear {
    layer: Arc<Layer>,
}

impl Linear {
    pub(crate) fn layer(&self) -> Arc<Layer> {
        Arc::clone(&self.layer)
    }
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
        let quantization = quantize.map(quantization).transpose()?;
        // Another thread may give a tensor other memory meanwhile.
        let _weight = weight.storage(py)?;
        let _bias = bias.as_ref().map(|bias| bias.storage(py)).transpose()?;
        let mut borrows = Borrows::default();
        macro_rules! pack {
            ($T:ty, $Layer:ident) => {{
                let rows = borrows.rows::<$T>("weight", &weight)?;
                let bias = bias
                    .as_ref()
                    .map(|bias| borrows.slice::<$T>("bias", bias))
                    .transpose()?;
                detach(py, || {
                    Ok(match quantization {
                        Some(to) => Layer::Grouped(GroupedLinear::quantize(rows, bias, to)?),
                        None => Layer::$Layer(linear::Linear::new(rows, bias)?),
                    })
                })?
            }};
        }
        let layer = match weight.dtype() {
            Dtype::Float32 => pack!(f32, Float32),
            Dtype::Bfloat16 => pack!(bf16, Bfloat16),
            _ => return Err(weight.wrong_dtype("weight", "float32 or bfloat16")),
        };
        Ok(Self {
            layer: Arc::new(layer),
        })
    }

    /// Packs weights that are stored in the blocks of a GGUF file, without a change of their values: `blocks`
    /// uint8 `[out_features, bytes of a row]`, `bias` float32 `[out_features]`.
    #[staticmethod]
    #[pyo3(signature = (blocks, block_type, bias=None))]
    fn from_blocks(
        py: Python<'_>,
        blocks: Tensor,
        block_type: &str,
        bias: Option<Tensor>,
    ) -> PyResult<Self> {
        blocks.dims::<2>("blocks")?;
        let block_type = self::block_type(block_type)?;
        // Another thread may give a tensor other memory meanwhile.
        let _blocks = blocks.storage(py)?;
        let _bias = bias.as_ref().map(|bias| bias.storage(py)).transpose()?;
        let mut borrows = Borrows::default();
        let rows = borrows.rows::<u8>("blocks", &blocks)?;
        let bias = bias
            .as_ref()
            .map(|bias| borrows.slice("bias", bias))
            .transpose()?;
        detach(py, || {
            let layer = GroupedLinear::from_blocks(rows, block_type, bias)?;
            Ok(Self {
                layer: Arc::new(Layer::Grouped(layer)),
            })
        })
    }

    #[getter]
    fn in_features(&self) -> usize {
        self.layer.in_features()
    }

    #[getter]
    fn out_features(&self) -> usize {
        self.layer.out_features()
    }

    /// Computes `out` `[T, out_features]` from `x` `[T, in_features]`.
    fn forward(linear: Py<Self>, py: Python<'_>, x: Tensor, out: TensorMut) -> PyResult<()> {
        let (x, out) = named!(x, out);
        call(
            py,
            (linear, x, out),
            // Each input meets each output of its row.
            |(linear, x, _)| x.numel().saturating_mul(linear.get().layer.out_features()),
            |(linear, x, out)| forward(&linear.get().layer, x, out),
        )
    }
}

fn forward(layer: &Layer, x: &Named<Tensor>, out: &Named<TensorMut>) -> PyResult<()> {
    x.dims::<2>()?;
    out.dims::<2>()?;
    let borrows = &mut Borrows::default();
    macro_rules! forward {
        ($layer:expr, $In:ty, $Out:ty) => {{
            let (x, out) = (x.rows::<$In>(borrows)?, out.rows_mut::<$Out>(borrows)?);
            $layer.forward(x, out)?;
        }};
    }
    match (layer, x.dtype(), out.dtype()) {
        (Layer::Float32(layer), _, _) => forward!(layer, f32, f32),
        (Layer::Bfloat16(layer), Dtype::Float32, _) => {
            // The stream between quantized layers is float32; a layer that is not rounds it.
            let rounded = round_rows(x.rows(borrows)?);
            let x = rounded.rows();
            match out.dtype() {
                Dtype::Float32 => layer.forward(x, out.rows_mut::<f32>(borrows)?)?,
                _ => layer.forward(x, out.rows_mut::<bf16>(borrows)?)?,
            }
        }
        (Layer::Bfloat16(layer), _, Dtype::Float32) => forward!(layer, bf16, f32),
        (Layer::Bfloat16(layer), _, _) => forward!(layer, bf16, bf16),
        (Layer::Grouped(layer), Dtype::Float32, Dtype::Bfloat16) => forward!(layer, f32, bf16),
        (Layer::Grouped(layer), Dtype::Float32, _) => forward!(layer, f32, f32),
        (Layer::Grouped(layer), _, Dtype::Float32) => forward!(layer, bf16, f32),
        (Layer::Grouped(layer), _, _) => forward!(layer, bf16, bf16),
    }
    Ok(())
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
