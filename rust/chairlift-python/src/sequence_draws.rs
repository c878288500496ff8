//! What the draws of a step on a device ask for beside the tables, as lists that a kernel reads.

use crate::{constraints::Constraints, detach::detach, sampling::SamplerStates};
use chairlift_device::sampling_lists;
use chairlift_grammar::Draw;
use chairlift_kernels::{
    memory::rows::Rows,
    sampling::{
        inputs::{DrawSequences, MaskLines},
        states::SequenceStates,
    },
};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::sync::Arc;

/// The draws of a step of which some ask for more than temperature, top-k, top-p and min-p.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct SequenceDraws {
    states: Arc<Mutex<SequenceStates>>,
    constraints: Py<Constraints>,
    slots: Vec<i32>,
    positions: Vec<i32>,
    needs_tokens: bool,
}

fn numbers(name: &'static str, tensor: &Tensor, expected: usize) -> PyResult<Vec<i32>> {
    let numbers = Borrows::default().slice::<i32>(name, tensor)?.to_vec();
    if numbers.len() == expected {
        return Ok(numbers);
    }
    let message = format!(
        "{name}: expected one per draw: {expected}, got {}",
        numbers.len()
    );
    Err(PyValueError::new_err(message))
}

#[pymethods]
impl SequenceDraws {
    /// None where no draw asks for more.
    #[staticmethod]
    fn of(
        states: &SamplerStates,
        constraints: Py<Constraints>,
        slots: Tensor,
        position: Tensor,
    ) -> PyResult<Option<Self>> {
        let slots = Borrows::default().slice::<i32>("slots", &slots)?.to_vec();
        let needs: Vec<bool> = {
            let states = states.inner.lock();
            let needs = |&slot: &i32| states.needs_tokens(slot as usize);
            slots.iter().filter_map(needs).collect()
        };
        let has_constraint = constraints.get().has_any(&slots);
        if needs.is_empty() && !has_constraint {
            return Ok(None);
        }
        Ok(Some(Self {
            states: Arc::clone(&states.inner),
            constraints,
            positions: numbers("position", &position, slots.len())?,
            slots,
            needs_tokens: has_constraint || needs.contains(&true),
        }))
    }

    /// Whether the tokens before the draws have to be known.
    #[getter]
    fn needs_tokens(&self) -> bool {
        self.needs_tokens
    }

    /// What the draws ask for behind these tokens, of which a negative one is none.
    fn lists(
        &self,
        py: Python<'_>,
        last_tokens: Tensor,
        vocab_size: usize,
    ) -> PyResult<SampleLists> {
        let last_tokens = numbers("last_tokens", &last_tokens, self.slots.len())?;
        let constraints = self.constraints.get();
        detach(py, || {
            let draws = self.slots.iter().zip(&self.positions).zip(&last_tokens);
            let draws = draws.map(|((&slot, &position), &last_token)| Draw {
                slot: if last_token < 0 { -1 } else { slot },
                position,
                last_token,
            });
            let masks = constraints.masks(&draws.collect::<Vec<_>>())?;
            let masks = masks.as_ref().map(|masks| MaskLines {
                bits: Rows::contiguous(&masks.bits, masks.num_words),
                of_draw: &masks.of_draw,
            });
            let states = self.states.lock();
            let sequences = DrawSequences {
                states: &states,
                slots: &self.slots,
                last_tokens: &last_tokens,
            };
            let inner = sampling_lists::lists(sequences, &self.positions, masks, vocab_size)?;
            Ok(SampleLists { inner })
        })
    }

    /// Takes what was drawn; a negative token is none.
    fn record(&self, tokens: Tensor) -> PyResult<()> {
        let tokens = numbers("tokens", &tokens, self.slots.len())?;
        self.states
            .lock()
            .record(&self.slots, &self.positions, &tokens);
        Ok(())
    }
}

/// Lists that a kernel reads.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct SampleLists {
    inner: sampling_lists::Lists,
}

#[pymethods]
impl SampleLists {
    #[getter]
    fn num_entries(&self) -> usize {
        self.inner.entries.len() / 2
    }

    #[getter]
    fn num_mask_words(&self) -> usize {
        self.inner.masks.len()
    }

    #[getter]
    fn num_candidates(&self) -> usize {
        self.inner.num_candidates
    }

    /// Numbers that `write` writes.
    fn __len__(&self) -> usize {
        let lists = &self.inner;
        lists.rows.len() + lists.entries.len() + lists.masks.len()
    }

    /// Writes rows, entries and masks one behind the other.
    fn write(&self, out: TensorMut) -> PyResult<()> {
        let mut borrows = Borrows::default();
        let mut rest: &mut [i32] = borrows.slice_mut("out", &out)?;
        if rest.len() < self.__len__() {
            let expected = self.__len__();
            let message = format!("out: expected at least {expected}, got {}", rest.len());
            return Err(PyValueError::new_err(message));
        }
        let lists = &self.inner;
        for part in [&lists.rows, &lists.entries, &lists.masks] {
            let (front, behind) = rest.split_at_mut(part.len());
            front.copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }
}
