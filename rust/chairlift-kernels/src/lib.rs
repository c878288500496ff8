//! The CPU kernels of Chairlift: linear layers, paged attention, KV write, norms, sampling.
//!
//! What holds for every kernel:
//!
//! - **The bits of a row depend on that row alone**, not on how many rows travel with it, on how a
//!   prompt is cut into chunks or on the number of threads. Every output is one chain of operations
//!   in a fixed order: over `k` in [`linear`], over absolute positions in [`paged_attention`].
//!   This holds within one instruction set ([`dispatch`]) and build.
//! - Activations are `f32` or `bf16`; accumulation is `f32`.
//! - Arguments are checked before any work; a wrong one is an [`ArgumentError`] that names it.
//! - The inner loops are generic code over fixed-size arrays, which the compiler turns into vector
//!   instructions; [`dispatch`] instantiates them once per instruction set.
//!
//! `unsafe` is confined to four places: [`dispatch`] (calls into code compiled for other
//! instruction sets), [`disjoint`] and [`pool`] (threads that share one output), [`aligned`] and
//! [`element`] (memory seen as another type), and `tensor` (memory that torch owns).

pub mod aligned;
pub mod disjoint;
pub mod dispatch;
pub mod element;
mod error;
pub mod exp;
pub mod kv_write;
pub mod layout;
pub mod linear;
pub mod norm;
pub mod paged_attention;
pub mod philox;
pub mod pool;
pub mod rope;
pub mod rows;
pub mod sampling;
pub mod silu;
pub mod softmax;
#[cfg(feature = "python")]
pub mod tensor;
pub mod tile;

pub use element::Element;
pub use error::ArgumentError;
pub use half::bf16;
pub use rows::{Rows, RowsMut};
