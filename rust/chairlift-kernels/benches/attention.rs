//! Attention of whole steps: `cargo bench -p chairlift-kernels --bench attention`.
//!
//! Steps are named as in vLLM's attention benchmarks: `8q1s1024` is eight rows with one query and
//! 1,024 tokens each.

use chairlift_kernels::{
    Rows, RowsMut,
    attention::{
        kv_format::KvView,
        kv_layout::{BLOCK_SIZE, CacheShape},
        layer::AttentionLayer,
        paged_attention::{AttentionElement, paged_attention},
        work_items::Sequences,
    },
    bf16,
};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

const NUM_HEADS: usize = 16;
const NUM_KV_HEADS: usize = 4;
const HEAD_DIM: usize = 64;

fn main() {
    divan::main();
}

/// Rows, queries of each, tokens of each.
const STEPS: [(&str, usize, usize, usize); 6] = [
    ("16q1s64", 16, 1, 64),
    ("16q1s512", 16, 1, 512),
    ("1q1s4096", 1, 1, 4096),
    ("1q256s256", 1, 256, 256),
    ("1q256s2048", 1, 256, 2048),
    ("8q32s512", 8, 32, 512),
];

/// The counters show bytes of keys and values, and items that are multiply-adds.
#[divan::bench(types = [f32, bf16], args = STEPS.map(|step| step.0), sample_count = 20)]
fn attend<T: AttentionElement>(bencher: Bencher<'_, '_>, name: &str) {
    let found = STEPS.iter().find(|step| step.0 == name);
    let &(_, rows, queries, seq_len) = found.expect("a step of this name");
    let blocks_per_row = seq_len.div_ceil(BLOCK_SIZE);
    let shape = CacheShape::contiguous(rows * blocks_per_row, NUM_KV_HEADS, HEAD_DIM);
    let cache = vec![T::from_f32(0.5); shape.num_blocks * NUM_KV_HEADS * shape.head_len()];
    // A stride that is prime to the number of blocks puts neighbours far apart.
    let table: Vec<i32> = (0..shape.num_blocks)
        .map(|index| (index * 10_007 % shape.num_blocks) as i32)
        .collect();
    let width = NUM_HEADS * HEAD_DIM;
    let query = vec![T::from_f32(0.25); rows * queries * width];
    let mut out = vec![T::default(); query.len()];
    let lines: Vec<i32> = (0..rows as i32).collect();
    let starts: Vec<i32> = (0..=rows).map(|row| (row * queries) as i32).collect();
    let seq_lens = vec![seq_len as i32; rows];
    let seen: usize = (seq_len - queries + 1..=seq_len).sum();
    let layer = AttentionLayer::new(KvView::Numbers(&cache), shape, 0.125);
    let sequences = Sequences {
        block_table: Rows::contiguous(&table, blocks_per_row),
        rows: &lines,
        query_start_loc: &starts,
        seq_lens: &seq_lens,
    };
    bencher
        .counter(BytesCount::of_slice(&cache))
        .counter(ItemsCount::new(2 * rows * seen * width))
        .bench_local(|| {
            let out = RowsMut::contiguous(&mut out, width);
            paged_attention(Rows::contiguous(&query, width), &layer, &sequences, out)
        });
}
