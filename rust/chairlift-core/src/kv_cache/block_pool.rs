//! The pool of KV blocks (PagedAttention, SOSP '23).
//!
//! - A block is free (no references, in the free list) or in use (at least one reference, not in the list).
//! - Allocate, share and release are O(1) and never allocate memory; sharing takes a block out of the middle of the list.
//! - Free blocks are given out in LRU order, blank ones before blocks whose content the prefix cache still knows.
//! - Block 0 is the null block: it has no owner and is never given out.

use super::index_list::IndexList;
use crate::{
    error::{Violation, ensure},
    ids::{BlockId, NULL_BLOCK},
};

/// Reference counts and the free list.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    references: Vec<u32>,
    free: IndexList,
}

impl BlockPool {
    /// A pool of `num_blocks` blocks, the null block included.
    pub(crate) fn new(num_blocks: usize) -> Self {
        let mut free = IndexList::with_capacity(num_blocks);
        (1..num_blocks as BlockId).for_each(|block| free.push_back(block));
        Self {
            references: vec![0; num_blocks],
            free,
        }
    }

    /// Blocks that can be in use.
    pub(crate) fn num_blocks(&self) -> usize {
        self.references.len() - 1
    }

    /// Blocks without references.
    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// The free blocks in the order in which they would be given out.
    pub(crate) fn free(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter()
    }

    /// Owners of a block.
    pub(crate) fn num_references(&self, block: BlockId) -> u32 {
        self.references[block as usize]
    }

    /// Takes the least recently used free block; the caller is its only owner.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// Adds an owner to a block, in use or free.
    ///
    /// # Panics
    /// If it is the null block.
    pub(crate) fn share(&mut self, block: BlockId) {
        assert_ne!(block, NULL_BLOCK, "invariant: the null block has no owner");
        if self.references[block as usize] == 0 {
            self.free.remove(block);
        }
        self.references[block as usize] += 1;
    }

    /// Removes an owner. A block without owners becomes free: the next to be given out when `blank`, else the last.
    ///
    /// # Panics
    /// If the block has no owner.
    pub(crate) fn release(&mut self, block: BlockId, blank: bool) {
        let references = &mut self.references[block as usize];
        assert!(
            *references > 0,
            "invariant: block {block} is released by an owner"
        );
        *references -= 1;
        if *references == 0 {
            if blank {
                self.free.push_front(block);
            } else {
                self.free.push_back(block);
            }
        }
    }

    /// Every block is in exactly one state.
    ///
    /// # Errors
    /// Names the first block that is not.
    pub(crate) fn check_invariants(&self) -> Result<(), Violation> {
        ensure!(
            self.references[NULL_BLOCK as usize] == 0,
            "the null block has an owner"
        );
        ensure!(
            !self.free.contains(NULL_BLOCK),
            "the null block is in the free list"
        );
        let mut num_free = 0;
        for block in 1..self.references.len() as BlockId {
            let in_use = self.num_references(block) > 0;
            ensure!(
                in_use != self.free.contains(block),
                "block {block}: {} references and free is {}",
                self.num_references(block),
                self.free.contains(block)
            );
            num_free += usize::from(!in_use);
        }
        ensure!(
            self.free.iter().count() == num_free,
            "the free list is broken"
        );
        ensure!(self.free.len() == num_free, "the free list counts wrong");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Operations on a pool; numbers pick among what exists.
    #[derive(Clone, Debug)]
    enum PoolOp {
        Allocate,
        Share(usize),
        Release(usize, bool),
    }

    fn pool_op() -> impl Strategy<Value = PoolOp> {
        prop_oneof![
            Just(PoolOp::Allocate),
            any::<usize>().prop_map(PoolOp::Share),
            (any::<usize>(), any::<bool>()).prop_map(|(i, blank)| PoolOp::Release(i, blank)),
        ]
    }

    #[test]
    fn the_null_block_is_never_given_out() {
        let mut pool = BlockPool::new(3);
        assert_eq!(
            (pool.allocate(), pool.allocate(), pool.allocate()),
            (Some(1), Some(2), None)
        );
    }

    #[test]
    fn a_shared_block_is_free_only_after_its_last_owner() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().expect("one block is free");
        pool.share(block);
        pool.release(block, false);
        assert_eq!(pool.num_free(), 0);
        pool.release(block, false);
        assert_eq!(pool.num_free(), 1);
    }

    #[test]
    fn blank_blocks_are_given_out_before_known_ones() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        pool.release(blocks[0], false);
        pool.release(blocks[1], true);
        pool.release(blocks[2], false);
        assert_eq!(pool.allocate(), Some(blocks[1]));
        assert_eq!(
            pool.allocate(),
            Some(blocks[0]),
            "least recently released first"
        );
    }

    #[test]
    #[should_panic(expected = "released by an owner")]
    fn a_double_release_is_caught() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().expect("one block is free");
        pool.release(block, true);
        pool.release(block, true);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn every_block_of_a_pool_is_free_or_owned(ops in prop::collection::vec(pool_op(), 1..200)) {
            let mut pool = BlockPool::new(12);
            let mut owners = Vec::new();
            for op in ops {
                match op {
                    PoolOp::Allocate => {
                        if let Some(block) = pool.allocate() {
                            prop_assert!(block != NULL_BLOCK && !owners.contains(&block));
                            owners.push(block);
                        } else {
                            prop_assert_eq!(pool.num_free(), 0);
                        }
                    }
                    PoolOp::Share(i) => {
                        let block = 1 + (i % 11) as u32;
                        pool.share(block);
                        owners.push(block);
                    }
                    PoolOp::Release(i, blank) => {
                        if let Some(index) = i.checked_rem(owners.len()) {
                            pool.release(owners.swap_remove(index), blank);
                        }
                    }
                }
                prop_assert_eq!(pool.check_invariants(), Ok(()));
                for block in 1..12 {
                    let count = owners.iter().filter(|&&owner| owner == block).count();
                    prop_assert_eq!(pool.num_references(block) as usize, count);
                }
            }
        }
    }
}
