//! Bindings of constraints: compiled grammars, and the masks of a step.

use crate::{detach::detach, drafts::Drafts, events::Events, text::TokenTable};
use chairlift_core::{
    RequestId,
    events::{self, EndReason, EventKind},
    scheduler::MAX_DRAFTS,
};
use chairlift_draws::mask_line;
use chairlift_grammar::{Compiler, Draw, Masks, Matcher, Pending, Source, Vocabulary};
use chairlift_kernels::memory::pool;
use chairlift_tensor::{Borrows, Tensor};
use parking_lot::{Mutex, MutexGuard};
use pyo3::{
    exceptions::{PyIndexError, PyValueError},
    prelude::*,
};
use std::sync::{Arc, OnceLock};

/// A compiled constraint.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Grammar {
    inner: Arc<chairlift_grammar::Grammar>,
}

#[pymethods]
impl Grammar {
    #[getter]
    fn num_bytes(&self) -> usize {
        self.inner.num_bytes()
    }
}

/// Compiles constraints over the tokens of a model.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct GrammarCompiler {
    table: Arc<chairlift_text::TokenTable>,
    end_ids: Vec<u32>,
    stack_bytes: usize,
    /// Built with the first constraint: it reads the whole vocabulary.
    inner: OnceLock<Result<Compiler, String>>,
}

impl GrammarCompiler {
    fn compiler(&self) -> Result<&Compiler, &str> {
        let compiler = self.inner.get_or_init(|| {
            let table = &self.table;
            let ids = 0..table.vocab_size() as i32;
            let tokens: Vec<_> = ids.map(|id| table.bytes(id).to_vec()).collect();
            let special = |id: usize| table.is_special(id as i32);
            let vocabulary = Vocabulary::new(&tokens, special, &self.end_ids);
            let vocabulary = vocabulary.map_err(|error| error.to_string())?;
            Compiler::new(vocabulary, self.stack_bytes).map_err(|error| error.to_string())
        });
        compiler.as_ref().map_err(String::as_str)
    }
}

#[pymethods]
impl GrammarCompiler {
    #[new]
    #[pyo3(signature = (token_table, end_ids, *, stack_bytes = chairlift_grammar::grammar::STACK_BYTES))]
    fn new(token_table: &TokenTable, end_ids: Vec<u32>, stack_bytes: usize) -> Self {
        Self {
            table: Arc::clone(&token_table.inner),
            end_ids,
            stack_bytes,
            inner: OnceLock::new(),
        }
    }

    #[pyo3(signature = (kind, text = String::new(), choices = vec![]))]
    fn compile(
        &self,
        py: Python<'_>,
        kind: &str,
        text: String,
        choices: Vec<String>,
    ) -> PyResult<Grammar> {
        let source = match kind {
            "json_schema" => Source::JsonSchema(text),
            "json_object" => Source::JsonObject,
            "regex" => Source::Regex(text),
            "lark" => Source::Lark(text),
            "choices" => Source::Choices(choices),
            _ => return Err(PyValueError::new_err(format!("kind: unknown {kind:?}"))),
        };
        let compiled = py.detach(|| {
            let compiler = self.compiler()?;
            compiler.compile(&source).map_err(|error| error.0)
        });
        match compiled {
            Ok(grammar) => Ok(Grammar {
                inner: Arc::new(grammar),
            }),
            Err(message) => Err(PyValueError::new_err(message)),
        }
    }
}

#[pyfunction]
pub(crate) fn matched_names(
    patterns: Vec<String>,
    names: Vec<String>,
) -> PyResult<(Vec<Vec<usize>>, Vec<bool>)> {
    let matched = chairlift_grammar::patterns::matched_names(&patterns, &names);
    let matched = matched.map_err(|error| PyValueError::new_err(error.0))?;
    Ok((matched.names, matched.is_complete))
}

#[pyfunction]
pub(crate) fn match_all(patterns: Vec<String>, names: Vec<String>) -> PyResult<bool> {
    chairlift_grammar::patterns::match_all(&patterns, &names)
        .map_err(|error| PyValueError::new_err(error.0))
}

/// The constraints of sequences by slot.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Constraints {
    inner: Mutex<chairlift_grammar::Constraints>,
}

impl Constraints {
    fn lock(&self) -> MutexGuard<'_, chairlift_grammar::Constraints> {
        self.inner.lock()
    }

    /// Whether the sequence of one of these slots has one.
    pub(crate) fn has_any(&self, slots: &[i32]) -> bool {
        let constraints = self.lock();
        let has = |&slot: &i32| constraints.has(slot as usize);
        !constraints.is_empty() && slots.iter().any(has)
    }

    /// Computes the masks of draws; None where none has one. An error if a draw is not behind the tokens that are known.
    pub(crate) fn masks(&self, draws: &[Draw]) -> PyResult<Option<Masks>> {
        let Some(pending) = self.lock().start(draws) else {
            return Ok(None);
        };
        join(&pending).map(Some)
    }

    fn check(&self, slot: usize) -> PyResult<()> {
        let num_slots = self.lock().num_slots();
        if slot < num_slots {
            return Ok(());
        }
        let message = format!("slot: expected one below {num_slots}, got {slot}");
        Err(PyIndexError::new_err(message))
    }
}

#[pymethods]
impl Constraints {
    #[new]
    #[pyo3(signature = (num_slots, *, has_idle_cores = false))]
    fn new(num_slots: usize, has_idle_cores: bool) -> Self {
        let inner = chairlift_grammar::Constraints::new(num_slots, has_idle_cores);
        Self {
            inner: Mutex::new(inner),
        }
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    #[pyo3(signature = (slot, request_id, index, grammar, num_prompt_tokens, *, ends_early = true))]
    fn begin(
        &self,
        slot: usize,
        request_id: u64,
        index: u32,
        grammar: &Grammar,
        num_prompt_tokens: usize,
        ends_early: bool,
    ) -> PyResult<()> {
        self.check(slot)?;
        let matcher = Matcher::new(Arc::clone(&grammar.inner), num_prompt_tokens, ends_early);
        self.lock().begin(slot, (request_id, index), matcher);
        Ok(())
    }

    fn clear(&self, slot: usize) -> PyResult<()> {
        self.check(slot)?;
        self.lock().clear(slot);
        Ok(())
    }

    fn set_ends_early(&self, slot: usize, ends_early: bool) -> PyResult<()> {
        self.check(slot)?;
        if let Some(mut matcher) = self.lock().at(slot) {
            matcher.set_ends_early(ends_early);
        }
        Ok(())
    }

    fn start(
        &self,
        slots: Tensor,
        position: Tensor,
        last_tokens: Tensor,
    ) -> PyResult<Option<ConstraintMasks>> {
        let constraints = self.lock();
        if constraints.is_empty() {
            return Ok(None);
        }
        let mut borrows = Borrows::default();
        let slots = borrows.slice::<i32>("slots", &slots)?;
        let positions = borrows.slice::<i32>("position", &position)?;
        let last_tokens = borrows.slice::<i32>("last_tokens", &last_tokens)?;
        if positions.len() != slots.len() || last_tokens.len() != slots.len() {
            let message = format!(
                "position and last_tokens: expected {} entries like slots, got {} and {}",
                slots.len(),
                positions.len(),
                last_tokens.len()
            );
            return Err(PyValueError::new_err(message));
        }
        let draws = slots.iter().zip(positions).zip(last_tokens);
        let draws = draws.map(|((&slot, &position), &last_token)| Draw {
            slot,
            position,
            last_token,
        });
        let draws: Vec<_> = draws.collect();
        let pending = constraints.start(&draws);
        Ok(pending.map(|pending| ConstraintMasks {
            pending,
            joined: OnceLock::new(),
        }))
    }

    /// Follows what a step gave; returns what the grammars force after it, if `drafts`.
    fn observe(&self, py: Python<'_>, events: &Events, drafts: bool) -> Option<Drafts> {
        py.detach(|| {
            let mut constraints = self.lock();
            if constraints.is_empty() {
                return None;
            }
            observe(&mut constraints, events.inner(), drafts)
        })
    }
}

fn observe(
    constraints: &mut chairlift_grammar::Constraints,
    events: &events::Events,
    drafts: bool,
) -> Option<Drafts> {
    for event in &events.list {
        if let EventKind::Ended(end) = event.kind {
            let RequestId(request) = event.request;
            match events.ends[end].reason {
                // An error ends all answers with one event.
                EndReason::Failed(_) => constraints.end_all(request),
                _ => constraints.end((request, event.index)),
            }
        }
    }
    if !drafts {
        return None;
    }
    let answers = events.list.iter().filter_map(|event| match &event.kind {
        EventKind::Tokens { tokens, .. } => {
            let RequestId(request) = event.request;
            Some(((request, event.index), &events.tokens[tokens.clone()]))
        }
        _ => None,
    });
    let answers: Vec<_> = answers.collect();
    // The constraints are locked meanwhile: it must not wait for another caller's job.
    let found = pool::inline_only(|| constraints.follow(&answers, MAX_DRAFTS, &spread));
    (!found.is_empty()).then_some(Drafts { found })
}

/// Runs a function on the kernels' threads, which compute nothing else between two forward passes.
fn spread(num_threads: usize, function: &(dyn Fn() + Sync)) {
    pool::run(num_threads.min(pool::num_threads()), &|_| function());
}

fn join(pending: &Pending) -> PyResult<Masks> {
    let joined = pending.join(&spread);
    joined.map_err(|gap| PyValueError::new_err(gap.to_string()))
}

/// The masks of a step.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct ConstraintMasks {
    pending: Pending,
    joined: OnceLock<Arc<Masks>>,
}

impl ConstraintMasks {
    /// Computes the masks, or waits for them: without the interpreter.
    pub(crate) fn join(&self) -> PyResult<Arc<Masks>> {
        if let Some(masks) = self.joined.get() {
            return Ok(Arc::clone(masks));
        }
        let masks = join(&self.pending)?;
        Ok(Arc::clone(self.joined.get_or_init(|| Arc::new(masks))))
    }
}

#[pymethods]
impl ConstraintMasks {
    /// Of each draw the tokens that it may give: None where all are allowed; empty too where the constraint cannot be computed.
    fn allowed(&self, py: Python<'_>) -> PyResult<Vec<Option<Vec<i32>>>> {
        let masks = detach(py, || self.join())?;
        let line = |&line: &i32| match usize::try_from(line) {
            Ok(line) => Some(masks.allowed(line)),
            Err(_) if line == mask_line::FREE => None,
            Err(_) => Some(Vec::new()),
        };
        Ok(masks.of_draw.iter().map(line).collect())
    }
}

/// Registers the classes of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Grammar>()?;
    module.add_class::<GrammarCompiler>()?;
    module.add_class::<Constraints>()?;
    module.add_class::<ConstraintMasks>()?;
    module.add_function(wrap_pyfunction!(matched_names, module)?)?;
    module.add_function(wrap_pyfunction!(match_all, module)?)
}
