//! Operations on rows: norms, rotary positions, activations, row selection, sampling.

pub mod activation;
pub mod clamped;
pub mod gated_norm;
pub mod norm;
pub mod philox;
mod probabilities;
pub mod rope;
pub mod route;
pub mod sampling;
pub mod scale;
pub mod select;
