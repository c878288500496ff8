//! Linear layers at the sizes of decoding and prefill: `cargo bench -p chairlift-kernels --bench linear`.
//!
//! Each call takes the next of several layers, so that weights come from memory as in a model.

use chairlift_kernels::{
    Rows, RowsMut, bf16,
    gemm::{
        grouped::GroupedLinear,
        linear::{Linear, LinearElement},
        quantize::Quantization,
    },
};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

const IN_FEATURES: usize = 1024;
const OUT_FEATURES: usize = 5632;
const LAYERS: usize = 12;

fn main() {
    divan::main();
}

/// The counters show bytes of weights, and items that are multiply-adds.
#[divan::bench(types = [f32, bf16], args = [1, 4, 8, 16, 64, 256], sample_count = 20)]
fn forward<T: LinearElement>(bencher: Bencher<'_, '_>, rows: usize) {
    let weight = vec![T::from_f32(0.5); OUT_FEATURES * IN_FEATURES];
    let layers: Vec<Linear<T>> = (0..LAYERS)
        .map(|_| Linear::new(Rows::contiguous(&weight, IN_FEATURES), None).expect("it fits"))
        .collect();
    let x = vec![T::from_f32(0.25); rows * IN_FEATURES];
    let mut out = vec![T::default(); rows * OUT_FEATURES];
    let mut next = 0;
    bencher
        .counter(BytesCount::of_slice(&weight))
        .counter(ItemsCount::new(rows * weight.len()))
        .bench_local(|| {
            next = (next + 1) % LAYERS;
            let x = Rows::contiguous(&x, IN_FEATURES);
            layers[next].forward(x, RowsMut::contiguous(&mut out, OUT_FEATURES))
        });
}

#[divan::bench(args = [1, 4, 8, 16, 64, 256], sample_count = 20)]
fn int8(bencher: Bencher<'_, '_>, rows: usize) {
    quantized(bencher, rows, Quantization::Int8);
}

#[divan::bench(args = [1, 4, 8, 16, 64, 256], sample_count = 20)]
fn int4(bencher: Bencher<'_, '_>, rows: usize) {
    quantized(bencher, rows, Quantization::Int4);
}

fn quantized(bencher: Bencher<'_, '_>, rows: usize, quantization: Quantization) {
    let weight = vec![bf16::from_f32(0.5); OUT_FEATURES * IN_FEATURES];
    let layers: Vec<GroupedLinear> = (0..4 * LAYERS)
        .map(|_| {
            let weight = Rows::contiguous(&weight, IN_FEATURES);
            GroupedLinear::quantize(weight, None, quantization).expect("it fits")
        })
        .collect();
    let x = vec![bf16::from_f32(0.25); rows * IN_FEATURES];
    let mut out = vec![bf16::default(); rows * OUT_FEATURES];
    let bytes = quantization
        .format()
        .packed_bytes(OUT_FEATURES, IN_FEATURES)
        .expect("a layer that fits memory");
    let mut next = 0;
    bencher
        .counter(BytesCount::new(bytes))
        .counter(ItemsCount::new(rows * weight.len()))
        .bench_local(|| {
            next = (next + 1) % layers.len();
            let x = Rows::contiguous(&x, IN_FEATURES);
            layers[next].forward(x, RowsMut::contiguous(&mut out, OUT_FEATURES))
        });
}
