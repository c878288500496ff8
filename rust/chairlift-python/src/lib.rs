//! `chairlift._core`: thin bindings over the core and the kernels. They convert, release the GIL and map errors.
#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments are extracted from Python"
)]

use pyo3::prelude::*;

mod attention;
mod attention_work;
mod detach;
mod error;
mod events;
mod kernels;
mod linear;
mod outboxes;
mod plan;
mod recording;
mod sampling;
mod scheduler;
mod text;
mod waits;

#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use crate::{
        attention_work::attention_work,
        events::{Account, Events, FailedEvent, FinishedEvent, TokensEvent},
        outboxes::{Outboxes, Posted},
        plan::apply_plan,
        recording::Recording,
        scheduler::{Added, Load, Scheduler},
        text::{TextStream, TokenTable},
        waits::Waiting,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::kernels::register(module)?;
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("CoreError", py.get_type::<crate::error::CoreError>())?;
        module.add("ConfigError", py.get_type::<crate::error::ConfigError>())?;
        module.add("Refused", py.get_type::<crate::error::Refused>())?;
        module.add("UnknownStep", py.get_type::<crate::error::UnknownStep>())?;
        module.add(
            "InvariantError",
            py.get_type::<crate::error::InvariantError>(),
        )
    }
}
