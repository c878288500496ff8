//! Operations on rows: norms, rotary positions, activations, row selection.

pub mod activation;
pub mod clamped_swiglu;
pub mod gated_norm;
pub mod norm;
pub mod rope;
pub mod route;
pub mod scale;
pub mod select;
