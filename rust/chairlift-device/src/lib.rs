//! What a GPU is told of a step, computed on the host.
//!
//! [`attention_work`] cuts the attention of a step into pieces of work; [`sampling_lists`] lists what draws ask for beside
//! the parameters that each of them has. The code of the device is in `cuda/`.

#![forbid(unsafe_code)]

pub mod attention_work;
pub mod sampling_lists;
