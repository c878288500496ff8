//! `chairlift._core`: thin bindings over the core and the kernels.
mod kernels;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::kernels::register(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
