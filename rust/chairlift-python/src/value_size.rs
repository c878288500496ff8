//! `value_size`: how large a value is that a client sent, by a walk that is linear in it and bounded.
use pyo3::{
    prelude::*,
    types::{PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple},
};

/// Characters of a value's JSON text that is no text: a digit or a quote at least, and a comma or a bracket.
const CHARACTERS_PER_VALUE: usize = 2;

/// Bytes of a small number, and of an object beside its fields; about, as `CPython` allocates them.
const NUMBER_BYTES: usize = 32;
const OBJECT_BYTES: usize = 48;

/// Bytes of a list and of each item, of a dictionary and of each entry.
const LIST_BYTES: usize = 56;
const ITEM_BYTES: usize = 8;
const DICT_BYTES: usize = 184;
const ENTRY_BYTES: usize = 48;

/// Bytes of a text beside its characters.
const TEXT_BYTES: usize = 56;

/// A text of fewer characters is counted with four bytes for each; longer ones are asked.
const MAX_SHORT_TEXT: usize = 16;

struct Walk<'py> {
    limit: usize,
    num_characters: usize,
    num_bytes: usize,
    /// Values that hold others, and were not walked yet.
    left: Vec<Bound<'py, PyAny>>,
}

impl<'py> Walk<'py> {
    /// Counts a value; one that holds others waits for its turn.
    fn count(&mut self, value: Bound<'py, PyAny>) -> PyResult<()> {
        self.num_characters += CHARACTERS_PER_VALUE;
        if let Ok(text) = value.cast::<PyString>() {
            let num_characters = text.len()?;
            self.num_characters += num_characters;
            self.num_bytes += if num_characters <= MAX_SHORT_TEXT {
                TEXT_BYTES + 4 * num_characters
            } else {
                num_bytes(&value)?
            };
        } else if (value.is_instance_of::<PyInt>() && value.extract::<i64>().is_ok())
            || value.is_instance_of::<PyFloat>()
        {
            self.num_bytes += NUMBER_BYTES;
        } else if !value.is_none() {
            self.left.push(value);
        }
        Ok(())
    }

    /// Counts a value that may hold others, and those.
    fn enter(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if let Ok(list) = value.cast::<PyList>() {
            self.num_bytes += LIST_BYTES + ITEM_BYTES * list.len();
            self.count_all(list.iter().map(Ok))
        } else if let Ok(items) = value.cast::<PyTuple>() {
            self.num_bytes += LIST_BYTES + ITEM_BYTES * items.len();
            self.count_all(items.iter().map(Ok))
        } else if let Ok(items) = value.cast::<PyDict>() {
            self.num_bytes += DICT_BYTES + ENTRY_BYTES * items.len();
            self.count_all(items.iter().flat_map(|(key, item)| [Ok(key), Ok(item)]))
        } else if let Ok(fields) = value.getattr("__dataclass_fields__") {
            self.num_bytes += OBJECT_BYTES;
            let fields = fields.cast_into::<PyDict>()?;
            self.count_all(
                fields
                    .keys()
                    .iter()
                    .map(|name| value.getattr(name.cast::<PyString>()?)),
            )
        } else if let Ok(items) = value.cast::<PyMapping>() {
            self.num_bytes += num_bytes(value)?;
            let (keys, items) = (items.keys()?, items.values()?);
            self.count_all(keys.iter().chain(items.iter()).map(Ok))
        } else {
            self.num_bytes += num_bytes(value)?;
            Ok(())
        }
    }

    fn count_all(
        &mut self,
        values: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
    ) -> PyResult<()> {
        for value in values {
            if self.num_characters > self.limit {
                break;
            }
            self.count(value?)?;
        }
        Ok(())
    }
}

/// What `CPython` says of a value without those that it holds.
fn num_bytes(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    value.call_method0("__sizeof__")?.extract()
}

/// The characters of a value's JSON text and its bytes in memory, about, with all that it holds: lists, tuples, mappings and
/// dataclasses. The walk ends behind `limit` characters, which a value that holds itself reaches, too.
///
/// In Rust, since the walk runs on the event loop: of 400,000 numbers it takes 5 ms, and in Python took 50.
#[pyfunction]
fn value_size(value: Bound<'_, PyAny>, limit: usize) -> PyResult<(usize, usize)> {
    let mut walk = Walk {
        limit,
        num_characters: 0,
        num_bytes: 0,
        left: Vec::new(),
    };
    walk.count(value)?;
    while let Some(value) = walk.left.pop() {
        if walk.num_characters > limit {
            break;
        }
        walk.enter(&value)?;
    }
    Ok((walk.num_characters, walk.num_bytes))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(value_size, module)?)
}
