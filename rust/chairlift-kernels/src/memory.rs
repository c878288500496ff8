//! Memory and threads: aligned buffers, matrices with strides, outputs that threads share, the thread pool.

pub mod aligned;
pub mod disjoint;
pub mod pool;
pub(crate) mod prefetch;
pub mod rows;
