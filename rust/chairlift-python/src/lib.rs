//! `chairlift._core`: thin bindings over the core and the kernels. They convert, release the GIL and map errors.
#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments are extracted from Python"
)]

use pyo3::prelude::*;

mod activations;
mod adapters;
mod answer;
mod attention;
mod attention_work;
mod block_events;
mod call;
mod candidates;
mod constraints;
mod detach;
mod drafts;
mod error;
mod events;
mod experts;
mod fleet;
mod full_attention;
mod json_shape;
mod kernels;
mod linear;
mod load;
mod new_request;
mod norms;
mod outboxes;
mod plan;
mod prefix_store;
mod process_guard;
mod ranks;
mod recording;
mod recurrent;
mod router;
mod run_queue;
mod sampling;
mod scale;
mod scheduler;
mod scoring;
mod sequence_draws;
mod step_record;
mod text;
mod transfer_rules;
mod value_size;
mod waits;

// A Python without the interpreter's lock takes it for this module: what needs it has not been proven free of it.
#[pymodule(gil_used = true)]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};
    use chairlift_kernels::attention::kv_layout;

    #[pymodule_export]
    use crate::{
        answer::AnswerParser,
        attention_work::attention_work,
        block_events::BlockEvents,
        candidates::Candidates,
        events::{Account, Events, FailedEvent, FinishedEvent, PromptEvent, TokensEvent},
        fleet::{Fleet, FleetRun},
        load::Load,
        outboxes::{Outboxes, Posted},
        plan::apply_plan,
        prefix_store::{BlockUses, MissingBlocks, PrefixLoad, PrefixStore, PrefixStoreStats},
        process_guard::ProcessGuard,
        recording::Recording,
        router::Router,
        scheduler::{Added, Scheduler},
        sequence_draws::{SampleLists, SequenceDraws},
        text::{StopRegex, TextStream, TokenTable},
        waits::Waiting,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::plan::register(module)?;
        crate::kernels::register(module)?;
        crate::norms::register(module)?;
        crate::activations::register(module)?;
        crate::linear::register(module)?;
        crate::experts::register(module)?;
        crate::adapters::register(module)?;
        crate::attention::register(module)?;
        crate::full_attention::register(module)?;
        crate::sampling::register(module)?;
        crate::scoring::register(module)?;
        crate::constraints::register(module)?;
        crate::drafts::register(module)?;
        crate::scale::register(module)?;
        crate::ranks::register(module)?;
        crate::recurrent::register(module)?;
        crate::transfer_rules::register(module)?;
        crate::value_size::register(module)?;
        crate::json_shape::register(module)?;
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("HEAD_DIM_STEP", kv_layout::HEAD_DIM_STEP)?;
        module.add("MAX_HEAD_DIM", kv_layout::MAX_HEAD_DIM)?;
        module.add("CoreError", py.get_type::<crate::error::CoreError>())?;
        module.add("ConfigError", py.get_type::<crate::error::ConfigError>())?;
        module.add("Refused", py.get_type::<crate::error::Refused>())?;
        module.add("RankError", py.get_type::<crate::error::RankError>())?;
        module.add("UnknownStep", py.get_type::<crate::error::UnknownStep>())?;
        module.add(
            "InvariantError",
            py.get_type::<crate::error::InvariantError>(),
        )
    }
}
