//! Operations on rows: norms, rotary positions, the gated activation, row selection, sampling.

pub mod norm;
pub mod philox;
mod probabilities;
pub mod rope;
pub mod sampling;
pub mod select;
pub mod silu;
