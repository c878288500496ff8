//! The CPU kernels of Chairlift: linear layers, paged attention, KV write, norms, sampling.
//!
//! What holds for every kernel:
//!
//! - **The bits of a row depend on that row alone**, not on how many rows travel with it, on how a
//!   prompt is cut into chunks or on the number of threads. Every output is one chain of operations
//!   in a fixed order: over `k` in [`linear`], over absolute positions in [`paged_attention`].
//!   This holds within one instruction set ([`dispatch`]) and build.
//! - Activations are `f32` or `bf16`; accumulation is `f32`, in [`quantized`] layers exact integers.
//! - Arguments are checked before any work; a wrong one is an [`ArgumentError`] that names it.
//! - A kernel has one source, generic over the instruction set ([`isa`]); [`dispatch`] holds an
//!   instance per set and chooses at run time.
//!
//! `unsafe` is confined to [`isa`], [`integers`], [`amx`] and [`dispatch`] (instructions that not every machine has), [`memory`],
//! [`disjoint`] and [`pool`] (threads that share one output), [`aligned`] and [`element`] (memory
//! seen as another type), and `tensor` (memory that torch owns).

pub mod aligned;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tests alone multiply tiles there")
)]
mod amx;
pub mod attend;
pub mod attention_work;
pub mod disjoint;
pub mod dispatch;
pub mod element;
mod error;
pub mod exp;
pub mod factor;
pub mod int4;
pub mod int8;
pub mod integers;
pub mod isa;
pub mod kv_write;
pub mod layout;
pub mod linear;
mod memory;
pub mod norm;
pub mod paged_attention;
mod pairs;
pub mod panels;
pub mod philox;
pub mod pool;
mod probabilities;
pub mod quantize;
pub mod quantized;
pub mod roofline;
pub mod rope;
pub mod rows;
pub mod sampling;
pub mod select;
pub mod silu;
pub mod softmax;
pub mod span;
pub mod stored;
#[cfg(feature = "python")]
pub mod tensor;
pub mod tile;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tests alone multiply tiles there")
)]
mod tiled;
pub mod work_items;

pub use element::Element;
pub use error::ArgumentError;
pub use half::bf16;
pub use rows::{Rows, RowsMut};
