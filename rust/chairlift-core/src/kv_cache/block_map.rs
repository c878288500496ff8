//! How the blocks of the pool are used, counted by cells of neighbouring blocks, so that a picture of the pool costs the
//! same for any number of blocks.
//!
//! ```text
//! blocks   1 .. 8   9 .. 16   17 .. 24   ...        at most [`MAX_CELLS`] cells
//! free     |  0       3          8
//! cached   |  1       4          0                  free, but found by the prefix cache
//! held     |  7       1          0                  of a request, and `shared` those of several
//! ```
//!
//! A held block is one tenant's: requests share blocks only within a tenant.

use crate::{
    error::{Violation, ensure},
    ids::{BlockId, Tenant},
};

/// The cells of a map, at most.
pub const MAX_CELLS: usize = 512;

/// How the blocks of a cell are used; held, cached and free ones are all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellUse {
    /// Held by requests.
    pub held: u32,
    /// Held blocks that requests of the tenant that asks hold.
    pub held_by_tenant: u32,
    /// Held blocks that several requests or sequences hold.
    pub shared: u32,
    /// Held by none, and found by the prefix cache.
    pub cached: u32,
    /// Held by none and not found.
    pub free: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Cached,
    Held,
    Shared,
}

impl State {
    fn of(references: u32, is_published: bool) -> Self {
        match (references, is_published) {
            (0, false) => Self::Free,
            (0, true) => Self::Cached,
            (1, _) => Self::Held,
            _ => Self::Shared,
        }
    }

    fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Shared)
    }
}

/// The blocks that a tenant holds, by cell; without memory while there are none.
#[derive(Clone, Debug, Default)]
struct TenantCells {
    num_held: usize,
    held: Vec<u32>,
}

/// The state of each block, and its counts.
#[derive(Clone, Debug)]
pub(super) struct BlockMap {
    states: Vec<State>,
    /// Whose a block is while it is held.
    tenants: Vec<Tenant>,
    blocks_per_cell: usize,
    /// By cell, then by state.
    cells: Vec<[u32; 4]>,
    by_tenant: Vec<TenantCells>,
}

impl BlockMap {
    /// A map of `num_blocks` free blocks, the null block included, which is in no cell.
    pub(super) fn new(num_blocks: usize) -> Self {
        let blocks_per_cell = (num_blocks - 1).div_ceil(MAX_CELLS).max(1);
        let num_cells = (num_blocks - 1).div_ceil(blocks_per_cell);
        let mut map = Self {
            states: vec![State::Free; num_blocks],
            tenants: vec![0; num_blocks],
            blocks_per_cell,
            cells: vec![[0; 4]; num_cells],
            by_tenant: Vec::new(),
        };
        for block in 1..num_blocks as BlockId {
            let cell = map.cell(block);
            map.cells[cell][State::Free as usize] += 1;
        }
        map
    }

    fn cell(&self, block: BlockId) -> usize {
        (block as usize - 1) / self.blocks_per_cell
    }

    /// Requests of a tenant hold a block, so many times.
    pub(super) fn hold(&mut self, block: BlockId, references: u32, tenant: Tenant) {
        if !self.states[block as usize].is_held() {
            self.tenants[block as usize] = tenant;
        }
        self.set(block, State::of(references, false));
    }

    /// One request less holds a block, or the prefix cache finds a block no more that none holds.
    pub(super) fn release(&mut self, block: BlockId, references: u32, is_published: bool) {
        self.set(block, State::of(references, is_published));
    }

    fn set(&mut self, block: BlockId, state: State) {
        let before = std::mem::replace(&mut self.states[block as usize], state);
        if before == state {
            return;
        }
        let cell = self.cell(block);
        self.cells[cell][before as usize] -= 1;
        self.cells[cell][state as usize] += 1;
        if before.is_held() != state.is_held() {
            self.count(self.tenants[block as usize], cell, state.is_held());
        }
    }

    fn count(&mut self, tenant: Tenant, cell: usize, is_held: bool) {
        let num_tenants = self.by_tenant.len().max(tenant as usize + 1);
        self.by_tenant
            .resize_with(num_tenants, TenantCells::default);
        let of_tenant = &mut self.by_tenant[tenant as usize];
        if is_held {
            of_tenant.held.resize(self.cells.len(), 0);
            of_tenant.held[cell] += 1;
            of_tenant.num_held += 1;
        } else {
            of_tenant.held[cell] -= 1;
            of_tenant.num_held -= 1;
            if of_tenant.num_held == 0 {
                of_tenant.held = Vec::new();
            }
        }
    }

    /// How each cell is used, as a tenant sees it; one without requests is None.
    pub(super) fn cells(&self, tenant: Option<Tenant>) -> Vec<CellUse> {
        let of_tenant = tenant.and_then(|tenant| self.by_tenant.get(tenant as usize));
        let of_tenant = |cell: usize| of_tenant.and_then(|blocks| blocks.held.get(cell)).copied();
        let cells = self.cells.iter().enumerate();
        let cells = cells.map(|(cell, &[free, cached, held, shared])| CellUse {
            held: held + shared,
            held_by_tenant: of_tenant(cell).unwrap_or(0),
            shared,
            cached,
            free,
        });
        cells.collect()
    }

    /// The map says what pool, prefix cache and tables say.
    ///
    /// # Errors
    /// Names the first block, or cell, that differs.
    pub(super) fn check_invariants(
        &self,
        references: &[u32],
        is_published: impl Fn(BlockId) -> bool,
        owners: impl Iterator<Item = (BlockId, Tenant)>,
    ) -> Result<(), Violation> {
        let mut counted = Self::new(self.states.len());
        for (block, tenant) in owners {
            counted.hold(block, references[block as usize], tenant);
        }
        for block in 1..self.states.len() as BlockId {
            if references[block as usize] == 0 {
                counted.release(block, 0, is_published(block));
            }
            let (state, expected) = (self.states[block as usize], counted.states[block as usize]);
            ensure!(
                state == expected,
                "block {block} is {state:?} in the map, and {expected:?}"
            );
        }
        ensure!(self.cells == counted.cells, "the cells count wrong");
        for (tenant, of_tenant) in self.by_tenant.iter().enumerate() {
            let expected = counted.by_tenant.get(tenant);
            let expected = expected.map_or(&[][..], |expected| &expected.held);
            ensure!(
                of_tenant.held == expected,
                "the cells of tenant {tenant} count wrong"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_of(held: u32, held_by_tenant: u32, shared: u32, cached: u32, free: u32) -> CellUse {
        CellUse {
            held,
            held_by_tenant,
            shared,
            cached,
            free,
        }
    }

    #[test]
    fn a_block_is_counted_in_the_state_that_it_is_in() {
        let mut map = BlockMap::new(3);
        map.hold(1, 1, 7);
        assert_eq!(
            map.cells(Some(7)),
            [use_of(1, 1, 0, 0, 0), use_of(0, 0, 0, 0, 1)]
        );
        map.hold(1, 2, 7);
        assert_eq!(
            map.cells(Some(6))[0],
            use_of(1, 0, 1, 0, 0),
            "another tenant's"
        );
        map.release(1, 1, true);
        map.release(1, 0, true);
        assert_eq!(map.cells(Some(7))[0], use_of(0, 0, 0, 1, 0));
        map.release(1, 0, false);
        assert_eq!(map.cells(None)[0], use_of(0, 0, 0, 0, 1));
    }

    #[test]
    fn a_large_pool_has_cells_of_equal_size_but_the_last() {
        let map = BlockMap::new(1 + 3 * MAX_CELLS + 1);
        let sizes: Vec<_> = map.cells(None).iter().map(|cell| cell.free).collect();
        assert!(sizes.len() <= MAX_CELLS);
        assert!(sizes[..sizes.len() - 1].iter().all(|&size| size == 4));
        assert_eq!(sizes.iter().sum::<u32>() as usize, 3 * MAX_CELLS + 1);
    }

    #[test]
    fn a_tenant_without_blocks_takes_no_memory() {
        let mut map = BlockMap::new(3);
        map.hold(1, 1, 3);
        map.release(1, 0, false);
        assert!(
            map.by_tenant
                .iter()
                .all(|of_tenant| of_tenant.held.capacity() == 0)
        );
    }
}
