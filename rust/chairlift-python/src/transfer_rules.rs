//! Which prompts another server computes, and how long that may take: one rule for servers and for simulated fleets.

use chairlift_fleet::roles;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MIN_TRANSFERRED_TOKENS", roles::MIN_TOKENS)?;
    module.add("MIN_TRANSFER_SAVED_NS", roles::MIN_SAVED)?;
    module.add("MAX_LIVE_TRANSFERS", roles::MAX_LIVE)?;
    module.add_function(wrap_pyfunction!(transfer_limit, module)?)
}

/// Nanoseconds that a transfer may take.
#[pyfunction]
#[pyo3(signature = (predicted, start_within))]
fn transfer_limit(predicted: Option<u64>, start_within: Option<u64>) -> u64 {
    roles::limit(predicted, start_within)
}
