//! The CPU kernels of Chairlift: linear layers, paged attention, KV write, norms, sampling.
//!
//! What holds for every kernel:
//!
//! - **The bits of a row depend on that row alone**, not on how many rows travel with it, on how a
//!   prompt is cut into chunks or on the number of threads. Every output is one chain of operations
//!   in a fixed order: over `k` in [`gemm`], over absolute positions in [`attention`].
//!   This holds within one instruction set ([`isa::dispatch`]) and build.
//! - Activations are `f32` or `bf16`; accumulation is `f32`, in quantized layers exact integers.
//! - Arguments are checked before any work; a wrong one is an [`ArgumentError`] that names it.
//! - A kernel has one source, generic over the instruction set ([`isa::Isa`]); [`isa::dispatch`] holds an
//!   instance per set and chooses one at run time (`CHAIRLIFT_CPU` chooses another).
//!
//! | operation | portable, AVX2, AVX-512 | dot products of bytes (AVX-512 VNNI) | pairs of bf16 (AVX-512 BF16) | AMX |
//! | --- | --- | --- | --- | --- |
//! | linear layer, f32 | `gemm/linear.rs` | the same | the same | the same |
//! | linear layer, bf16 | `gemm/linear.rs` | the same | `gemm/bf16_pairs.rs` | `gemm/amx_gemm.rs` |
//! | linear layer, four and eight bits | `gemm/grouped.rs`, `gemm/quants.rs` | the same (`HAS_DOT`) | as VNNI | as VNNI |
//! | mixture of experts | `gemm/experts.rs`, over any of the layers | the same | the same | the same |
//! | adapters (`LoRA`), f32 and bf16 | `gemm/low_rank.rs` | the same | the same | the same |
//! | attention, bf16 or f32 cache | `attention/span.rs` | the same | pairs: `gemm/operand.rs` | as pairs |
//! | attention without a cache | `attention/full.rs` | the same | the same | the same |
//! | attention, int8 cache | `attention/kv_format.rs` | the same | the same | the same |
//! | KV write, norms, rotary positions, activations, row selection | `attention/kv_write.rs`, `ops/` | the same | the same | the same |
//! | causal convolution, gated delta rule, selective scan | `recurrent/conv.rs`, `recurrent/delta.rs`, `recurrent/scan.rs` | the same | the same | the same |
//! | sampling | `sampling.rs` | the same | the same | the same |
//!
//! Every linear layer shares the loop over its weights (`gemm/panels.rs`) and the accumulator in registers
//! (`gemm/accumulator.rs`).
//!
//! `unsafe` is confined to [`isa`] (instructions that not every machine has), [`memory`]
//! (threads that share one output; memory seen as another type; prefetches).

pub mod attention;
mod error;
pub mod gemm;
pub mod isa;
pub mod memory;
pub mod ops;
pub mod recurrent;
pub mod roofline;
pub mod sampling;

pub use error::{ArgumentError, expect_equal};
pub use half::bf16;
pub use isa::element::Element;
pub use memory::rows::{Rows, RowsMut};
