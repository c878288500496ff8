//! `PrefixStore`: blocks and recurrent states of the prefix cache on disk, copied from the memory of a model and into it.

use std::{ops::Range, path::PathBuf, time::Duration};

use chairlift_core::{BlockUse, Stored, StoredName};
use chairlift_prefix_store::{self as store, Options, Progress, Stats, StoreError};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
    types::PyBytes,
};

use crate::error;

/// The blocks that steps used since they were taken last; immutable.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct BlockUses(pub(crate) Vec<BlockUse>);

/// The blocks that a request lacks; immutable.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct MissingBlocks(pub(crate) chairlift_core::MissingBlocks);

/// Blocks on disk.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct PrefixStore {
    /// None once it is closed.
    inner: Mutex<Option<store::Store>>,
}

/// Blocks on their way from disk.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct PrefixLoad {
    inner: Mutex<store::Load>,
}

/// Counts of a store.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct PrefixStoreStats {
    num_blocks: usize,
    num_bytes: u64,
    num_foreign: usize,
    loaded: u64,
    written: u64,
    dropped: u64,
    failed: u64,
    corrupt: u64,
    declined: u64,
}

impl From<Stats> for PrefixStoreStats {
    fn from(stats: Stats) -> Self {
        Self {
            num_blocks: stats.num_blocks,
            num_bytes: stats.num_bytes,
            num_foreign: stats.num_foreign,
            loaded: stats.loaded,
            written: stats.written,
            dropped: stats.dropped,
            failed: stats.failed,
            corrupt: stats.corrupt,
            declined: stats.declined,
        }
    }
}

/// Where the bytes of a block lie in a pool `[planes, blocks, bytes]`.
#[derive(Clone, Copy)]
struct PoolShape {
    num_planes: usize,
    num_blocks: usize,
    width: usize,
}

impl PoolShape {
    fn of(pool: &Tensor) -> PyResult<Self> {
        let [num_planes, num_blocks, width] = pool.dims("pool")?;
        Ok(Self {
            num_planes,
            num_blocks,
            width,
        })
    }

    fn block_bytes(self) -> usize {
        self.num_planes * self.width
    }

    fn check(self, block: u32) -> PyResult<()> {
        if (block as usize) < self.num_blocks {
            return Ok(());
        }
        let num_blocks = self.num_blocks;
        Err(PyValueError::new_err(format!(
            "blocks: expected numbers below {num_blocks}, got {block}"
        )))
    }

    /// The start of a block in each plane.
    fn starts(self, block: u32) -> impl Iterator<Item = usize> {
        (0..self.num_planes)
            .map(move |plane| (plane * self.num_blocks + block as usize) * self.width)
    }

    fn append(self, pool: &[u8], block: u32, out: &mut Vec<u8>) {
        for start in self.starts(block) {
            out.extend_from_slice(&pool[start..start + self.width]);
        }
    }

    /// As `append`, with zeros behind the first so many bytes.
    fn append_written(self, pool: &[u8], block: u32, num_bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        self.append(pool, block, out);
        if let Some(rest) = out.get_mut(start + num_bytes..) {
            rest.fill(0);
        }
    }

    fn fill(self, pool: &mut [u8], block: u32, bytes: &[u8]) {
        for (start, bytes) in self.starts(block).zip(bytes.chunks_exact(self.width)) {
            pool[start..start + self.width].copy_from_slice(bytes);
        }
    }
}

#[pymethods]
impl BlockUses {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let names = self.0.iter().map(|used| PyBytes::new(py, &used.name));
        names.collect()
    }

    fn groups(&self) -> Vec<usize> {
        self.0.iter().map(|used| used.group).collect()
    }

    #[pyo3(signature = (pool, numbers = None))]
    fn contents<'py>(
        &self,
        py: Python<'py>,
        pool: Tensor,
        numbers: Option<Vec<usize>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let shape = PoolShape::of(&pool)?;
        let mut borrows = Borrows::default();
        let pool = borrows.slice::<u8>("pool", &pool)?;
        let numbers = numbers.unwrap_or_else(|| (0..self.0.len()).collect());
        let mut contents = Vec::with_capacity(numbers.len() * shape.block_bytes());
        for number in numbers {
            let used = self.0.get(number).ok_or_else(|| {
                let message = format!("numbers: expected less than {}, got {number}", self.0.len());
                PyValueError::new_err(message)
            })?;
            shape.check(used.block)?;
            shape.append(pool, used.block, &mut contents);
        }
        Ok(PyBytes::new(py, &contents))
    }
}

#[pymethods]
impl MissingBlocks {
    #[getter]
    fn first(&self) -> usize {
        self.0.first
    }

    #[getter]
    fn num_indices(&self) -> usize {
        self.0.num_indices
    }

    #[getter]
    fn number(&self) -> usize {
        self.0.number
    }

    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let names = self.0.names.iter();
        names.map(|name| PyBytes::new(py, name)).collect()
    }

    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.state.map(|name| PyBytes::new(py, &name))
    }

    fn __len__(&self) -> usize {
        self.0.names.len()
    }
}

#[pymethods]
impl PrefixStore {
    #[new]
    #[pyo3(signature = (folder, *, max_bytes, block_bytes, layout, key, state_bytes = 0, admits_first = false))]
    fn new(
        folder: PathBuf,
        max_bytes: u64,
        block_bytes: usize,
        layout: [u8; 32],
        key: [u8; 32],
        state_bytes: usize,
        admits_first: bool,
    ) -> PyResult<Self> {
        let store = store::Store::open(Options {
            folder,
            max_bytes,
            block_bytes,
            state_bytes,
            layout,
            key,
            admits_first,
        });
        let store = store.map_err(|error| match error {
            StoreError::TooSmall { .. } => {
                error::ConfigError::new_err(format!("prefix_store_bytes: {error}"))
            }
            StoreError::Locked(_) | StoreError::Io { .. } => PyOSError::new_err(error.to_string()),
        })?;
        Ok(Self {
            inner: Mutex::new(Some(store)),
        })
    }

    fn write(
        &self,
        py: Python<'_>,
        pool: Tensor,
        uses: &BlockUses,
        group_bytes: Vec<usize>,
    ) -> PyResult<()> {
        let shape = PoolShape::of(&pool)?;
        let mut borrows = Borrows::default();
        let pool = borrows.slice::<u8>("pool", &pool)?;
        py.detach(|| {
            let mut inner = self.inner.lock();
            let Some(store) = &mut *inner else {
                return Ok(());
            };
            check_size(shape, store)?;
            for &BlockUse {
                block,
                name,
                group,
                is_hit,
            } in &uses.0
            {
                shape.check(block)?;
                let num_bytes = *group_bytes.get(group).ok_or_else(|| {
                    let got = group_bytes.len();
                    PyValueError::new_err(format!(
                        "group_bytes: expected one of group {group}, got {got}"
                    ))
                })?;
                store.offer(name, is_hit, |out| {
                    shape.append_written(pool, block, num_bytes, out);
                });
            }
            Ok(())
        })
    }

    fn write_state(
        &self,
        py: Python<'_>,
        name: StoredName,
        is_hit: bool,
        states: Vec<Tensor>,
        row: usize,
    ) -> PyResult<()> {
        let mut borrows = Borrows::default();
        let mut parts = Vec::with_capacity(states.len());
        for layer in &states {
            let bytes = row_bytes(layer, row)?;
            parts.push(&borrows.slice::<u8>("states", layer)?[bytes]);
        }
        py.detach(|| {
            if let Some(store) = &mut *self.inner.lock() {
                store.offer_state(&name, is_hit, &parts);
            }
        });
        Ok(())
    }

    #[pyo3(signature = (missing, saves = None))]
    fn begin_load(&self, missing: &MissingBlocks, saves: Option<u64>) -> Option<PrefixLoad> {
        let inner = self.inner.lock();
        let saves = saves.map(Duration::from_nanos);
        let missing = &missing.0;
        let store = inner.as_ref()?;
        let load = store.begin_load(&missing.names, missing.state.as_ref(), saves)?;
        Some(PrefixLoad {
            inner: Mutex::new(load),
        })
    }

    fn stats(&self) -> Option<PrefixStoreStats> {
        let inner = self.inner.lock();
        inner.as_ref().map(|store| store.stats().into())
    }

    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| PyValueError::new_err(format!("timeout_s: {error}")))?;
        let store = self.inner.lock().take();
        Ok(py.detach(|| store.is_none_or(|mut store| store.close(timeout))))
    }
}

/// A store that is closed has nothing.
impl Stored for PrefixStore {
    fn has_block(&self, name: &StoredName) -> bool {
        let inner = self.inner.lock();
        inner.as_ref().is_some_and(|store| store.contains(name))
    }

    fn has_state(&self, name: &StoredName) -> bool {
        let inner = self.inner.lock();
        inner
            .as_ref()
            .is_some_and(|store| store.contains_state(name))
    }
}

/// Where the bytes of a row lie in the states of a layer, `[rows, bytes]`.
fn row_bytes(layer: &Tensor, row: usize) -> PyResult<Range<usize>> {
    let [num_rows, width] = layer.dims("states")?;
    if row < num_rows {
        return Ok(row * width..(row + 1) * width);
    }
    Err(PyValueError::new_err(format!(
        "row: expected less than {num_rows}, got {row}"
    )))
}

fn check_size(shape: PoolShape, store: &store::Store) -> PyResult<()> {
    let (expected, got) = (store.block_bytes(), shape.block_bytes());
    if expected == got {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "pool: expected blocks of {expected} bytes, got {got}"
    )))
}

#[pymethods]
impl PrefixLoad {
    fn poll(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<usize>> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| PyValueError::new_err(format!("timeout_s: {error}")))?;
        Ok(match py.detach(|| self.inner.lock().poll(timeout)) {
            Progress::Ready(count) => Some(count),
            Progress::Pending => Some(0),
            Progress::Done => None,
        })
    }

    fn keep_pieces(&self, count: usize) {
        self.inner.lock().keep_pieces(count);
    }

    fn place_state(&self, py: Python<'_>, states: Vec<TensorMut>, row: usize) -> PyResult<()> {
        let mut borrows = Borrows::default();
        let mut parts = Vec::with_capacity(states.len());
        for layer in &states {
            let bytes = row_bytes(layer, row)?;
            parts.push(&mut borrows.slice_mut::<u8>("states", layer)?[bytes]);
        }
        py.detach(|| self.inner.lock().fill_state(&mut parts));
        Ok(())
    }

    fn place(&self, py: Python<'_>, pool: TensorMut, blocks: Vec<u32>) -> PyResult<()> {
        let shape = PoolShape::of(&pool)?;
        for &block in &blocks {
            shape.check(block)?;
        }
        let mut borrows = Borrows::default();
        let pool = borrows.slice_mut::<u8>("pool", &pool)?;
        py.detach(|| {
            let mut load = self.inner.lock();
            let loaded = load.take(blocks.len());
            for (&block, bytes) in blocks.iter().zip(loaded) {
                // The null block stands for one that needs no filling.
                if block != 0 {
                    shape.fill(pool, block, &bytes);
                }
            }
        });
        Ok(())
    }
}
