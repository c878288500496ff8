//! Which blocks hold which tokens, so that equal prompt beginnings are computed once (vLLM's automatic prefix caching).
//!
//! A full block is named by the BLAKE3 hash of its own tokens, keyed by the name of the block before it; the first
//! block's parent is a root over the namespace (tenant, adapter, salt), every field length-prefixed, keyed by
//! configuration:
//!
//! ```text
//! key --> root(namespace) --> hash(tokens[0..16]) --> hash(tokens[16..32]) --> ...
//! ```
//!
//! - Such a cascade of keyed hashes is one itself (Bellare, Canetti, Krawczyk 1996): without the key no name can be
//!   computed. From a known name the next can be computed, so that names do not leave the process.
//! - A hit compares parent and tokens too: a collision costs a miss, never a wrong answer.
//! - The cache owns nothing. A published block may be free: it is found until the pool gives it out again.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    error::{Violation, ensure},
    ids::BlockId,
};

/// Names a full block and, through its parents, everything before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockHash([u8; 32]);

impl BlockHash {
    /// The name of a block with these tokens behind the block of this name.
    #[must_use]
    pub(crate) fn next(self, tokens: &[i32]) -> Self {
        let bytes = bytemuck::cast_slice(tokens);
        Self(*blake3::keyed_hash(&self.0, bytes).as_bytes())
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A keyed hash is already uniform: its first bytes are its place in a table.
    fn first(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}

impl std::hash::Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.first());
    }
}

/// Takes the first bytes of a name as they are; hashing them again would gain nothing.
#[derive(Default)]
pub(super) struct Uniform(u64);

pub(super) type ByHash = BuildHasherDefault<Uniform>;

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        unreachable!("a BlockHash writes one u64, got {} bytes", bytes.len());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// What is added to the weights of the model for a request (`LoRA`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    /// Where the runner has it; 0 is none.
    pub slot: u32,
    /// Another one each time that an adapter is loaded: what was computed with the one before it is not used again.
    pub generation: u64,
}

/// Requests share blocks only within a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// From authentication, never from a field of the request.
    pub tenant: String,
    /// Chosen by the client, within its tenant.
    pub salt: String,
    pub adapter: Adapter,
}

/// What a block is named by, in one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Names {
    hash: BlockHash,
    parent: BlockHash,
}

/// The KV group of a block that cannot be found.
const UNPUBLISHED: u16 = u16::MAX;

/// The published blocks of every KV group.
///
/// What is known of a block lies at its number, and the tables hold numbers alone: publishing and forgetting a block
/// allocate nothing, and touch few cache lines of a pool that no cache holds.
#[derive(Clone, Debug)]
pub(crate) struct PrefixCache {
    key: [u8; 32],
    block_size: usize,
    /// By group: the blocks, placed by their names.
    by_hash: Vec<HashTable<BlockId>>,
    /// By block: the group in which it can be found.
    groups: Vec<u16>,
    names: Vec<Names>,
    /// `[num_blocks, block_size]`
    tokens: Vec<i32>,
    num_published: usize,
}

impl PrefixCache {
    /// An empty cache over a pool of `num_blocks` blocks.
    pub(crate) fn new(
        key: [u8; 32],
        num_groups: usize,
        num_blocks: usize,
        block_size: usize,
    ) -> Self {
        // All that it may hold, if groups share the pool alike: growth would hold a step up.
        let capacity = num_blocks.div_ceil(num_groups);
        Self {
            key,
            block_size,
            by_hash: vec![HashTable::with_capacity(capacity); num_groups],
            groups: vec![UNPUBLISHED; num_blocks],
            names: vec![Names::default(); num_blocks],
            tokens: vec![0; num_blocks * block_size],
            num_published: 0,
        }
    }

    /// A key for another use than names, from which those cannot be computed.
    pub(super) fn derived_key(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.key)
    }

    /// The parent of a namespace's first blocks.
    pub(crate) fn root(&self, namespace: &Namespace) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for field in [&namespace.tenant, &namespace.salt] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field.as_bytes());
        }
        let adapter = namespace.adapter;
        for number in [u64::from(adapter.slot), adapter.generation] {
            hasher.update(&number.to_le_bytes());
        }
        BlockHash(*hasher.finalize().as_bytes())
    }

    /// The block of a group that holds `tokens` after `parent`.
    pub(crate) fn lookup(
        &self,
        group: usize,
        hash: BlockHash,
        parent: BlockHash,
        tokens: &[i32],
    ) -> Option<BlockId> {
        let block = self.find(group, &hash)?;
        let is_equal = self.names[block as usize].parent == parent && self.tokens(block) == tokens;
        is_equal.then_some(block)
    }

    fn find(&self, group: usize, hash: &BlockHash) -> Option<BlockId> {
        let has_name = |&block: &BlockId| self.names[block as usize].hash == *hash;
        self.by_hash[group].find(hash.first(), has_name).copied()
    }

    /// Makes a block known; false if it is already, or an equal one, which stays the known one.
    pub(crate) fn publish(
        &mut self,
        group: usize,
        block: BlockId,
        hash: BlockHash,
        parent: BlockHash,
        tokens: &[i32],
    ) -> bool {
        if self.is_published(block) {
            return false;
        }
        let names = &self.names;
        let entry = self.by_hash[group].entry(
            hash.first(),
            |&other| names[other as usize].hash == hash,
            |&other| names[other as usize].hash.first(),
        );
        let Entry::Vacant(entry) = entry else {
            return false;
        };
        entry.insert(block);
        let place = block as usize;
        self.groups[place] = group as u16;
        self.names[place] = Names { hash, parent };
        self.tokens[place * self.block_size..(place + 1) * self.block_size].copy_from_slice(tokens);
        self.num_published += 1;
        true
    }

    /// The tokens of a block that can be found; none of another.
    pub(super) fn tokens(&self, block: BlockId) -> &[i32] {
        let place = block as usize;
        if self.is_published(block) {
            &self.tokens[place * self.block_size..(place + 1) * self.block_size]
        } else {
            &[]
        }
    }

    /// Whether the block can be found.
    pub(crate) fn is_published(&self, block: BlockId) -> bool {
        self.groups[block as usize] != UNPUBLISHED
    }

    /// Forgets a block that is about to be overwritten. Some: no group has a block of this name any more.
    pub(crate) fn evict(&mut self, block: BlockId) -> Option<BlockHash> {
        if !self.is_published(block) {
            return None;
        }
        let group = std::mem::replace(&mut self.groups[block as usize], UNPUBLISHED);
        let hash = self.names[block as usize].hash;
        let entry = self.by_hash[group as usize].find_entry(hash.first(), |&other| other == block);
        entry
            .expect("invariant: a published block is found")
            .remove();
        self.num_published -= 1;
        (!self.has_name(&hash)).then_some(hash)
    }

    /// A group has a block of this name.
    pub(crate) fn has_name(&self, hash: &BlockHash) -> bool {
        (0..self.by_hash.len()).any(|group| self.find(group, hash).is_some())
    }

    /// Blocks that can be found.
    pub(crate) fn num_published(&self) -> usize {
        self.num_published
    }

    /// Map and blocks agree.
    ///
    /// # Errors
    /// Names the first block that does not.
    pub(crate) fn check_invariants(&self) -> Result<(), Violation> {
        let mut count = 0;
        for (block, &group) in self.groups.iter().enumerate() {
            if group == UNPUBLISHED {
                continue;
            }
            count += 1;
            let Names { hash, parent } = self.names[block];
            ensure!(
                self.find(group.into(), &hash) == Some(block as BlockId),
                "published block {block} is not found"
            );
            ensure!(
                parent.next(self.tokens(block as BlockId)) == hash,
                "published block {block} has another content's name"
            );
        }
        ensure!(
            count == self.num_published,
            "{count} blocks are published, {} counted",
            self.num_published
        );
        let mapped: usize = self.by_hash.iter().map(HashTable::len).sum();
        ensure!(
            mapped == count,
            "{mapped} names for {count} published blocks"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn cache() -> PrefixCache {
        PrefixCache::new([7; 32], 1, 8, 2)
    }

    fn namespace(tenant: &str, salt: &str) -> Namespace {
        Namespace {
            tenant: tenant.into(),
            salt: salt.into(),
            adapter: Adapter::default(),
        }
    }

    #[test]
    fn each_load_of_each_adapter_has_a_root_of_its_own() {
        let cache = PrefixCache::new([3; 32], 1, 10, 2);
        let root = |slot, generation| {
            cache.root(&Namespace {
                adapter: Adapter { slot, generation },
                ..namespace("a", "")
            })
        };
        let roots = [root(0, 0), root(1, 1), root(1, 2), root(2, 1), root(2, 2)];
        let different: std::collections::HashSet<_> = roots.iter().collect();
        assert_eq!(different.len(), roots.len());
        assert_eq!(root(1, 2), root(1, 2));
    }

    #[test]
    fn a_published_block_is_found_until_it_is_evicted() {
        let mut cache = cache();
        let root = cache.root(&Namespace::default());
        let hash = root.next(&[1, 2]);
        cache.publish(0, 5, hash, root, &[1, 2]);
        assert_eq!(cache.lookup(0, hash, root, &[1, 2]), Some(5));
        cache.evict(5);
        assert_eq!(cache.lookup(0, hash, root, &[1, 2]), None);
        assert_eq!(cache.check_invariants(), Ok(()));
    }

    #[test]
    fn a_collision_is_a_miss() {
        let mut cache = cache();
        let root = cache.root(&Namespace::default());
        let hash = root.next(&[1, 2]);
        cache.publish(0, 5, hash, root, &[1, 2]);
        assert_eq!(
            cache.lookup(0, hash, root, &[1, 3]),
            None,
            "same name, other tokens"
        );
        assert_eq!(
            cache.lookup(0, hash, hash, &[1, 2]),
            None,
            "same name, other parent"
        );
    }

    #[test]
    fn tenants_and_salts_share_nothing() {
        let cache = cache();
        let roots = [
            ("", ""),
            ("a", ""),
            ("", "a"),
            ("a", "b"),
            ("ab", ""),
            ("", "ab"),
        ]
        .map(|(tenant, salt)| cache.root(&namespace(tenant, salt)).0);
        for (i, root) in roots.iter().enumerate() {
            assert!(
                !roots[..i].contains(root),
                "namespace {i} has a root of its own"
            );
        }
    }

    #[test]
    fn names_depend_on_the_key() {
        let other = PrefixCache::new([8; 32], 1, 8, 2);
        assert_ne!(
            cache().root(&Namespace::default()),
            other.root(&Namespace::default())
        );
    }

    #[test]
    fn the_first_of_two_equal_blocks_stays_the_known_one() {
        let mut cache = cache();
        let root = cache.root(&Namespace::default());
        let hash = root.next(&[1, 2]);
        cache.publish(0, 5, hash, root, &[1, 2]);
        cache.publish(0, 6, hash, root, &[1, 2]);
        assert_eq!(cache.lookup(0, hash, root, &[1, 2]), Some(5));
        assert!(!cache.is_published(6));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn a_cache_finds_exactly_what_was_published_last(
            ops in prop::collection::vec((0..6_i32, 0..6_i32, 1..10_u32, any::<bool>()), 1..100),
        ) {
            let mut cache = PrefixCache::new([3; 32], 1, 10, 2);
            let root = cache.root(&Namespace::default());
            let mut model: BTreeMap<(i32, i32), u32> = BTreeMap::new();
            for (first, second, block, evict) in ops {
                let tokens = [first, second];
                let hash = root.next(&tokens);
                if evict {
                    cache.evict(block);
                    model.retain(|_, known| *known != block);
                } else {
                    cache.publish(0, block, hash, root, &tokens);
                    if !model.values().any(|&known| known == block) {
                        model.entry((first, second)).or_insert(block);
                    }
                }
                prop_assert_eq!(cache.check_invariants(), Ok(()));
                prop_assert_eq!(cache.lookup(0, hash, root, &tokens), model.get(&(first, second)).copied());
                prop_assert_eq!(cache.num_published(), model.len());
            }
        }
    }
}
