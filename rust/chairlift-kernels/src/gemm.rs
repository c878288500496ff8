//! Linear layers: `out = x W^T + b`, one weight matrix packed once and read once per step.
//!
//! - [`linear`] and [`quantized`] are the layers; [`int8`], [`int4`] and `bf16_pairs` the formats of their weights.
//! - [`panels`] walks over the packed weights and shares them among threads; [`accumulator`] is the inner loop in
//!   registers; [`operand`] is what a row brings to it.
//! - `amx_gemm` is the same walk where whole tiles are multiplied, by the instructions of `isa/amx.rs`.

pub mod accumulator;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tests alone multiply tiles there")
)]
mod amx_gemm;
mod bf16_pairs;
pub mod int4;
pub mod int8;
pub mod linear;
pub mod operand;
pub mod panels;
pub mod quantize;
pub mod quantized;
