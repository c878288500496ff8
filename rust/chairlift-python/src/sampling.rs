//! Bindings of the sampler and of what it keeps of each sequence.

use crate::{
    call::{call, named},
    candidates::Candidates,
    constraints::ConstraintMasks,
    text::TokenTable,
};
use chairlift_kernels::{
    memory::rows::Rows,
    sampling::{
        self, Draws,
        bans::{Bans, NoEnd},
        candidates,
        dry::{Dry, TokenText},
        filters::Filters,
        inputs::{DrawSequences, MaskLines, Parameters},
        penalties::Penalties,
        states::{DrawOptions, SequenceState, SequenceStates},
    },
};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use parking_lot::{Mutex, MutexGuard};
use pyo3::{
    exceptions::{PyIndexError, PyValueError},
    prelude::*,
};
use std::sync::Arc;

/// The bytes of the scheduler's table.
struct Text(Arc<chairlift_text::TokenTable>);

impl TokenText for Text {
    fn bytes(&self, id: i32) -> &[u8] {
        self.0.bytes(id)
    }
}

/// What sequences ask for beside temperature, top-k, top-p and min-p, and their tokens, by slot.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct SamplerStates {
    pub(crate) inner: Arc<Mutex<SequenceStates>>,
}

impl SamplerStates {
    fn states(&self) -> MutexGuard<'_, SequenceStates> {
        self.inner.lock()
    }

    fn check(&self, slot: usize) -> PyResult<()> {
        let num_slots = self.states().num_slots();
        if slot < num_slots {
            return Ok(());
        }
        let message = format!("slot: expected one below {num_slots}, got {slot}");
        Err(PyIndexError::new_err(message))
    }
}

#[pymethods]
impl SamplerStates {
    #[new]
    fn new(num_slots: usize) -> Self {
        Self {
            inner: Arc::new(Mutex::new(SequenceStates::new(num_slots))),
        }
    }

    #[pyo3(signature = (slot, prompt, *, allowed_ids = None, banned_ids = vec![], bad_words = vec![],
        end_ids = vec![], no_end_before = 0, logit_bias = vec![], repetition_penalty = 1.0,
        presence_penalty = 0.0, frequency_penalty = 0.0, dry_multiplier = 0.0, dry_base = 1.75,
        dry_allowed_length = 2, dry_last_n = None, dry_breakers = vec![], top_n_sigma = 0.0,
        typical_p = 1.0, xtc_probability = 0.0, xtc_threshold = 0.1, num_candidates = 0,
        token_table = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    fn set(
        &self,
        slot: usize,
        prompt: Vec<i32>,
        allowed_ids: Option<Vec<i32>>,
        banned_ids: Vec<i32>,
        bad_words: Vec<Vec<i32>>,
        end_ids: Vec<i32>,
        no_end_before: usize,
        logit_bias: Vec<(i32, f32)>,
        repetition_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        dry_multiplier: f32,
        dry_base: f32,
        dry_allowed_length: usize,
        dry_last_n: Option<usize>,
        dry_breakers: Vec<Vec<u8>>,
        top_n_sigma: f32,
        typical_p: f32,
        xtc_probability: f32,
        xtc_threshold: f32,
        num_candidates: usize,
        token_table: Option<&TokenTable>,
    ) -> PyResult<()> {
        self.check(slot)?;
        let dry = match token_table {
            _ if dry_multiplier == 0.0 => None,
            None => {
                let message = "token_table: expected one, since dry_multiplier is not 0";
                return Err(PyValueError::new_err(message));
            }
            Some(table) => Some(Dry {
                multiplier: dry_multiplier,
                base: dry_base,
                allowed_length: dry_allowed_length,
                last_n: dry_last_n.unwrap_or(usize::MAX),
                breakers: dry_breakers,
                text: Arc::new(Text(Arc::clone(&table.inner))),
            }),
        };
        let options = DrawOptions {
            bans: Bans::new(allowed_ids.as_deref(), banned_ids, bad_words),
            no_end: NoEnd {
                end_ids,
                before: no_end_before,
            },
            bias: logit_bias,
            penalties: Penalties {
                repetition: repetition_penalty,
                presence: presence_penalty,
                frequency: frequency_penalty,
            },
            dry,
            filters: Filters {
                top_n_sigma,
                typical_p,
                xtc_probability,
                xtc_threshold,
            },
            num_candidates,
        };
        let state = SequenceState::new(options, prompt);
        self.states().set(slot, Some(state));
        Ok(())
    }

    fn set_no_end(&self, slot: usize, end_ids: Vec<i32>, before: usize) -> PyResult<()> {
        self.check(slot)?;
        let no_end = NoEnd { end_ids, before };
        let mut states = self.states();
        let known = states
            .get(slot)
            .map(|mut state| state.set_no_end(no_end.clone()));
        if known.is_none() && before > 0 {
            let options = DrawOptions {
                no_end,
                ..DrawOptions::default()
            };
            states.set(slot, Some(SequenceState::new(options, Vec::new())));
        }
        Ok(())
    }

    fn clear(&self, slot: usize) -> PyResult<()> {
        self.check(slot)?;
        self.states().set(slot, None);
        Ok(())
    }
}

/// Draws one token per row.
#[pyfunction]
#[pyo3(signature = (logits, temperature, top_k, top_p, min_p, seed, index, position, tokens,
    logprobs, ranks, *, scored = None, states = None, slots = None, last_tokens = None, mask = None,
    mask_of_draw = None, constraints = None))]
#[expect(
    clippy::too_many_arguments,
    reason = "flat by contract: one crossing per step"
)]
pub(crate) fn sample(
    py: Python<'_>,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    tokens: TensorMut,
    logprobs: TensorMut,
    ranks: TensorMut,
    scored: Option<Tensor>,
    states: Option<&SamplerStates>,
    slots: Option<Tensor>,
    last_tokens: Option<Tensor>,
    mask: Option<Tensor>,
    mask_of_draw: Option<Tensor>,
    constraints: Option<Py<ConstraintMasks>>,
) -> PyResult<Option<Candidates>> {
    // Masks may take long.
    let least_work = if constraints.is_some() { usize::MAX } else { 0 };
    let candidates: Arc<Mutex<Option<candidates::Candidates>>> = Arc::default();
    let states = states.map(|states| Arc::clone(&states.inner));
    let sequences = slots.zip(last_tokens).filter(|_| states.is_some());
    let sequences = sequences.map(|(slots, last_tokens)| named!(slots, last_tokens));
    let masks = mask.zip(mask_of_draw);
    let masks = masks.map(|(mask, mask_of_draw)| named!(mask, mask_of_draw));
    let parameters = named!(temperature, top_k, top_p, min_p, seed, index, position);
    let scored = scored.map(|scored| named!(scored));
    let drawn = named!(tokens, logprobs, ranks);
    let (logits,) = named!(logits);
    let found = Arc::clone(&candidates);
    call(
        py,
        (logits, parameters, drawn, (sequences, scored), masks),
        move |(logits, ..)| logits.numel().max(least_work),
        move |(logits, parameters, drawn, (sequences, scored), masks)| {
            logits.dims::<2>()?;
            let constraints = constraints.as_ref().map(|masks| masks.get().join());
            let constraints = constraints.transpose()?;
            let borrows = &mut Borrows::default();
            let logits = logits.rows(borrows)?;
            let (temperature, top_k, top_p, min_p, seed, index, position) = parameters;
            let parameters = Parameters {
                temperature: temperature.slice(borrows)?,
                top_k: top_k.slice(borrows)?,
                top_p: top_p.slice(borrows)?,
                min_p: min_p.slice(borrows)?,
                seed: seed.slice(borrows)?,
                index: index.slice(borrows)?,
                position: position.slice(borrows)?,
                scored: match scored {
                    Some((scored,)) => Some(scored.slice(borrows)?),
                    None => None,
                },
            };
            let (tokens, logprobs, ranks) = drawn;
            let draws = Draws {
                tokens: tokens.slice_mut(borrows)?,
                logprobs: logprobs.slice_mut(borrows)?,
                ranks: ranks.slice_mut(borrows)?,
            };
            let states = states.as_ref().map(|states| states.lock());
            let sequences = match (sequences, &states) {
                (Some((slots, last_tokens)), Some(states)) => Some(DrawSequences {
                    states,
                    slots: slots.slice(borrows)?,
                    last_tokens: last_tokens.slice(borrows)?,
                }),
                _ => None,
            };
            let masks = match (&constraints, masks) {
                (Some(masks), _) => Some(MaskLines {
                    bits: Rows::contiguous(&masks.bits, masks.num_words),
                    of_draw: &masks.of_draw,
                }),
                (None, Some((mask, mask_of_draw))) => {
                    mask.dims::<2>()?;
                    Some(MaskLines {
                        bits: mask.rows(borrows)?,
                        of_draw: mask_of_draw.slice(borrows)?,
                    })
                }
                (None, None) => None,
            };
            let candidates = sampling::sample(logits, &parameters, sequences, masks, draws)?;
            *found.lock() = (candidates.stride > 0).then_some(candidates);
            Ok(())
        },
    )?;
    let found = candidates.lock().take();
    Ok(found.map(|inner| Candidates { inner }))
}

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    module.add_class::<SamplerStates>()?;
    Ok(())
}
