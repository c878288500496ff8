//! Linear layers: `out = x W^T + b`, one weight matrix packed once and read once per step.
//!
//! - [`linear`] holds layers in `f32` and `bf16` (`bf16_pairs`: by dot products of pairs), [`grouped`] those of four and
//!   eight bits; `quants` is their arithmetic, [`quantize`] and [`blocks`] where their weights come from,
//!   [`rotation`] what is done to weights and inputs before.
//! - [`layer`] is any of them, and [`experts`] a mixture of small ones.
//! - [`panels`] walks over the packed weights, which `shares` gives to threads; [`accumulator`] is the inner loop in
//!   registers; [`operand`] is what a row brings to it.
//! - [`low_rank`] adds what adapters (`LoRA`) change, for the rows of each.
//! - `amx_gemm` is the same walk where whole tiles are multiplied, by the instructions of `isa/amx.rs`.

pub mod accumulator;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tests alone multiply tiles there")
)]
mod amx_gemm;
mod bf16_pairs;
pub mod blocks;
pub mod experts;
pub mod grouped;
pub mod layer;
pub mod linear;
pub mod low_rank;
pub mod operand;
pub mod panels;
mod plain_product;
pub mod quantize;
mod quants;
mod register_tile;
pub mod rotation;
mod shares;
pub mod weight_format;
