//! `Load`: a snapshot of the scheduler.

use chairlift_core::{scheduler, with_load_counts};
use pyo3::prelude::*;

macro_rules! declare_load {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)+) => {
        /// A snapshot of the scheduler: the counts of the core's.
        #[pyclass(module = "chairlift._core", frozen, get_all)]
        pub(crate) struct Load {
            $($name: $type,)+
        }

        impl From<scheduler::Load> for Load {
            fn from(load: scheduler::Load) -> Self {
                Self { $($name: load.$name,)+ }
            }
        }
    };
}

with_load_counts!(declare_load);
