//! Attention and KV write against a float64 oracle, and bit for bit against themselves.

use crate::oracle::{assert_close, bits, numbers, permutation, rounding, wide};
use chairlift_kernels::{
    ArgumentError, Rows, RowsMut,
    attention::{
        kv_format::KvView,
        kv_layout::{BLOCK_SIZE, CacheShape},
        kv_write::kv_write,
        layer::AttentionLayer,
        paged_attention::{AttentionElement, paged_attention},
        work_items::Sequences,
    },
    bf16,
    isa::{dispatch::instruction_set, set::InstructionSet},
    memory::pool,
};
use proptest::prelude::*;

/// A model's attention and the sequences that it has seen; every block starts as NaN.
struct World<T> {
    shape: CacheShape,
    num_heads: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    /// One per head, or none.
    sinks: Vec<f32>,
    cache: Vec<T>,
    /// `[num_seqs][blocks_per_row]`
    table: Vec<i32>,
    blocks_per_row: usize,
    /// Per sequence, `[seq_len][heads * head_dim]`.
    query: Vec<Vec<T>>,
    key: Vec<Vec<T>>,
    value: Vec<Vec<T>>,
}

/// Some queries of a sequence: `(sequence, first position, one past the last)`.
type Chunk = (usize, usize, usize);

impl<T: AttentionElement> World<T> {
    /// Sequences of these lengths, in blocks at permuted places; nothing is written yet.
    fn new(heads: (usize, usize), head_dim: usize, window: Option<usize>, lens: &[usize]) -> Self {
        let (num_heads, num_kv_heads) = heads;
        let longest = lens.iter().copied().max().unwrap_or(1);
        // One block more than needed: a column that no row may read.
        let blocks_per_row = longest.div_ceil(BLOCK_SIZE) + 1;
        let num_blocks = lens.len() * blocks_per_row + 3;
        let shape = CacheShape::contiguous(num_blocks, num_kv_heads, head_dim);
        let order = permutation(99, num_blocks);
        let table = (0..lens.len() * blocks_per_row)
            .map(|i| order[i] as i32)
            .collect();
        let make = |seed: u32, heads: usize| {
            let lens = lens.iter().enumerate();
            lens.map(|(s, len)| numbers(seed + s as u32, len * heads * head_dim))
                .collect()
        };
        Self {
            shape,
            num_heads,
            window,
            soft_cap: None,
            sinks: Vec::new(),
            cache: vec![T::from_f32(f32::NAN); num_blocks * num_kv_heads * shape.head_len()],
            table,
            blocks_per_row,
            query: make(1000, num_heads),
            key: make(2000, num_kv_heads),
            value: make(3000, num_kv_heads),
        }
    }

    fn write(&mut self, (sequence, start, end): Chunk) {
        let width = self.shape.num_kv_heads * self.shape.head_dim;
        let slots: Vec<i32> = (start..end)
            .map(|position| {
                let block = self.table[sequence * self.blocks_per_row + position / BLOCK_SIZE];
                block * BLOCK_SIZE as i32 + (position % BLOCK_SIZE) as i32
            })
            .collect();
        kv_write(
            Rows::contiguous(&self.key[sequence][start * width..end * width], width),
            Rows::contiguous(&self.value[sequence][start * width..end * width], width),
            &mut self.cache,
            self.shape,
            &slots,
        )
        .expect("the arguments fit");
    }

    /// Attention of chunks as one batch, each chunk a row.
    fn attend(&self, chunks: &[Chunk]) -> Vec<T> {
        let width = self.num_heads * self.shape.head_dim;
        let mut query = Vec::new();
        let mut starts = vec![0];
        for &(sequence, start, end) in chunks {
            query.extend_from_slice(&self.query[sequence][start * width..end * width]);
            starts.push((query.len() / width) as i32);
        }
        let rows: Vec<i32> = chunks.iter().map(|chunk| chunk.0 as i32).collect();
        let seq_lens: Vec<i32> = chunks.iter().map(|chunk| chunk.2 as i32).collect();
        let mut out = vec![T::from_f32(f32::NAN); query.len()];
        paged_attention(
            Rows::contiguous(&query, width),
            &self.layer(),
            &Sequences {
                block_table: Rows::contiguous(&self.table, self.blocks_per_row),
                rows: &rows,
                query_start_loc: &starts,
                seq_lens: &seq_lens,
            },
            RowsMut::contiguous(&mut out, width),
        )
        .expect("the arguments fit");
        out
    }

    fn layer(&self) -> AttentionLayer<'_, T> {
        AttentionLayer {
            window: self.window,
            soft_cap: self.soft_cap,
            sinks: (!self.sinks.is_empty()).then_some(&self.sinks[..]),
            ..AttentionLayer::new(KvView::Numbers(&self.cache), self.shape, self.scale())
        }
    }

    fn scale(&self) -> f32 {
        (self.shape.head_dim as f32).powf(-0.5)
    }

    /// Textbook attention in float64, over the sequence's own keys and values.
    fn oracle(&self, (sequence, start, end): Chunk) -> Vec<f64> {
        let head_dim = self.shape.head_dim;
        let group = self.num_heads / self.shape.num_kv_heads;
        let query = wide(&self.query[sequence]);
        let (key, value) = (wide(&self.key[sequence]), wide(&self.value[sequence]));
        let mut out = Vec::new();
        for position in start..end {
            let first = self
                .window
                .map_or(0, |window| (position + 1).saturating_sub(window));
            for head in 0..self.num_heads {
                let q = &query[(position * self.num_heads + head) * head_dim..][..head_dim];
                let at = |token: usize| (token * self.shape.num_kv_heads + head / group) * head_dim;
                let scores: Vec<f64> = (first..=position)
                    .map(|token| {
                        let k = &key[at(token)..][..head_dim];
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        let score = dot * f64::from(self.scale());
                        self.soft_cap
                            .map(f64::from)
                            .map_or(score, |cap| cap * (score / cap).tanh())
                    })
                    .collect();
                let sink = self.sinks.get(head).map(|&sink| f64::from(sink));
                let largest = scores
                    .iter()
                    .copied()
                    .chain(sink)
                    .fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let total = total + sink.map_or(0.0, |sink| (sink - largest).exp());
                out.extend((0..head_dim).map(|d| {
                    let tokens = weights.iter().enumerate();
                    tokens
                        .map(|(i, w)| w * value[at(first + i) + d])
                        .sum::<f64>()
                        / total
                }));
            }
        }
        out
    }

    fn check(&self, chunks: &[Chunk], what: &str) {
        let expected: Vec<f64> = chunks
            .iter()
            .flat_map(|&chunk| self.oracle(chunk))
            .collect();
        let out = self.attend(chunks);
        assert_close(
            &out,
            &expected,
            rounding::<T>(),
            weight_rounding::<T>(),
            what,
        );
    }
}

/// What an output may be off, values being at most 2: weights of pairs are bf16.
fn weight_rounding<T: AttentionElement>() -> f64 {
    if size_of::<T>() == 2 && instruction_set().includes(InstructionSet::Avx512Bf16) {
        2_f64.powi(-8)
    } else {
        4e-6
    }
}

/// Capped scores, and sinks from far below to far above every score.
fn caps_and_sinks<T: AttentionElement>(window: Option<usize>) {
    let mut world = World::<T>::new((4, 2), 32, window, &[100, 3]);
    world.write((0, 0, 100));
    world.write((1, 0, 3));
    let chunks = [(0, 0, 100), (1, 0, 3)];
    world.soft_cap = Some(0.8);
    world.check(&chunks, "capped");
    world.sinks = vec![-50.0, 0.3, 2.0, 40.0];
    world.check(&chunks, "capped, with sinks");
    let together = world.attend(&chunks);
    let alone = world.attend(&[(0, 99, 100)]);
    let width = alone.len();
    assert_eq!(bits(&alone), bits(&together[99 * width..100 * width]));
    world.soft_cap = None;
    world.check(&chunks, "with sinks");
}

#[test]
fn scores_are_capped_and_sinks_take_weight() {
    for window in [None, Some(20)] {
        caps_and_sinks::<f32>(window);
        caps_and_sinks::<bf16>(window);
    }
}

/// A prompt of each length as one chunk, then its last token again as a decode.
fn lengths_at_block_edges<T: AttentionElement>() {
    let lens = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 100];
    let mut world = World::<T>::new((4, 2), 32, None, &lens);
    for (sequence, &len) in lens.iter().enumerate() {
        world.write((sequence, 0, len));
        world.check(&[(sequence, 0, len)], &format!("prompt of {len}"));
        world.check(&[(sequence, len - 1, len)], &format!("decode at {len}"));
    }
    let all: Vec<Chunk> = lens
        .iter()
        .enumerate()
        .map(|(s, &len)| (s, len / 2, len))
        .collect();
    world.check(&all, "all in one ragged batch");
}

#[test]
fn float32_agrees_with_the_oracle_at_block_edges() {
    lengths_at_block_edges::<f32>();
}

#[test]
fn bfloat16_agrees_with_the_oracle_at_block_edges() {
    lengths_at_block_edges::<bf16>();
}

#[test]
fn every_ratio_of_heads_agrees_with_the_oracle() {
    for heads in [(1, 1), (3, 1), (8, 1), (4, 4), (6, 3), (14, 2), (28, 1)] {
        let mut world = World::<f32>::new(heads, 16, None, &[37]);
        world.write((0, 0, 37));
        world.check(&[(0, 0, 37)], &format!("heads {heads:?}, prompt"));
        world.check(&[(0, 36, 37)], &format!("heads {heads:?}, decode"));
    }
}

#[test]
fn every_head_size_agrees_with_the_oracle() {
    for head_dim in (16..=256).step_by(16).chain([384, 512]) {
        let mut world = World::<f32>::new((2, 1), head_dim, None, &[35]);
        world.write((0, 0, 35));
        world.check(&[(0, 0, 35)], &format!("head_dim {head_dim}"));
        let mut world = World::<bf16>::new((2, 1), head_dim, None, &[35]);
        world.write((0, 0, 35));
        world.check(&[(0, 0, 35)], &format!("bf16, head_dim {head_dim}"));
    }
}

#[test]
fn blocks_that_lie_apart_have_the_bits_of_neighbours() {
    let mut near = World::<bf16>::new((4, 2), 32, None, &[70]);
    let mut apart = World::<bf16>::new((4, 2), 32, None, &[70]);
    apart.shape.block_stride += 100;
    let gaps = (apart.shape.num_blocks - 1) * 100;
    apart
        .cache
        .resize(near.cache.len() + gaps, bf16::from_f32(f32::NAN));
    for world in [&mut near, &mut apart] {
        world.write((0, 0, 70));
    }
    let written = |world: &World<bf16>| world.cache.iter().filter(|x| !x.to_f32().is_nan()).count();
    assert_eq!(written(&apart), written(&near));
    let chunk = [(0, 31, 70)];
    assert_eq!(bits(&apart.attend(&chunk)), bits(&near.attend(&chunk)));
}

#[test]
fn windows_agree_with_the_oracle() {
    for window in [1, 2, 15, 16, 17, 31, 33, 64, 1000] {
        let mut world = World::<f32>::new((4, 2), 16, Some(window), &[70]);
        world.write((0, 0, 70));
        world.check(&[(0, 0, 70)], &format!("window {window}, prompt"));
        world.check(&[(0, 50, 70)], &format!("window {window}, chunk"));
        world.check(&[(0, 69, 70)], &format!("window {window}, decode"));
    }
}

#[test]
fn blocks_before_the_window_are_not_read() {
    let mut world = World::<f32>::new((2, 1), 16, Some(20), &[64]);
    world.write((0, 0, 64));
    let whole = world.attend(&[(0, 60, 64)]);
    // Position 60 sees 41..=60: the first two blocks may be freed and given to others.
    world.table[0] = 0;
    world.table[1] = i32::MAX;
    assert_eq!(bits(&world.attend(&[(0, 60, 64)])), bits(&whole));
}

#[test]
fn an_infinite_value_of_a_later_token_does_not_reach_earlier_ones() {
    let mut world = World::<f32>::new((2, 1), 16, None, &[12]);
    world.write((0, 0, 12));
    let sound = world.attend(&[(0, 0, 11)]);
    world.value[0][11 * 16..].fill(f32::INFINITY);
    world.write((0, 0, 12));
    let out = world.attend(&[(0, 0, 12)]);
    assert_eq!(bits(&out[..sound.len()]), bits(&sound));
    assert!(out[sound.len()..].iter().all(|number| !number.is_finite()));
}

#[test]
fn nan_in_a_row_stays_in_that_row() {
    let mut world = World::<f32>::new((2, 1), 16, None, &[20, 20]);
    world.write((0, 0, 20));
    world.write((1, 0, 20));
    let alone = world.attend(&[(1, 19, 20)]);
    world.value[0][0] = f32::NAN;
    world.write((0, 0, 20));
    let out = world.attend(&[(0, 19, 20), (1, 19, 20)]);
    assert!(out[0].is_nan());
    assert_eq!(bits(&out[32..]), bits(&alone));
}

#[test]
fn a_row_without_queries_and_an_empty_batch_are_fine() {
    let mut world = World::<f32>::new((2, 1), 16, None, &[20, 20]);
    world.write((0, 0, 20));
    let alone = world.attend(&[(0, 19, 20)]);
    assert_eq!(bits(&world.attend(&[(1, 7, 7), (0, 19, 20)])), bits(&alone));
    assert!(world.attend(&[]).is_empty());
}

/// The bits of a token are those of computing it alone, however the step is composed.
fn bits_do_not_depend_on_the_step<T: AttentionElement>(
    heads: (usize, usize),
    window: Option<usize>,
    lens: &[usize],
    chunk: usize,
    threads: usize,
) {
    let head_dim = 32;
    let mut world = World::<T>::new(heads, head_dim, window, lens);
    let mut alone: Vec<Vec<u32>> = vec![Vec::new(); lens.len()];
    // Token by token, each written just before it is computed: later tokens are still NaN.
    pool::set_num_threads(1);
    for (sequence, &len) in lens.iter().enumerate() {
        for position in 0..len {
            world.write((sequence, position, position + 1));
            let out = world.attend(&[(sequence, position, position + 1)]);
            alone[sequence].extend(bits(&out));
        }
    }
    // All sequences step by step in chunks, in one batch.
    pool::set_num_threads(threads);
    let mut world = World::<T>::new(heads, head_dim, window, lens);
    let mut together: Vec<Vec<u32>> = vec![Vec::new(); lens.len()];
    for start in (0..*lens.iter().max().expect("a sequence")).step_by(chunk) {
        let chunks: Vec<Chunk> = (0..lens.len())
            .filter(|&s| start < lens[s])
            .map(|s| (s, start, lens[s].min(start + chunk)))
            .collect();
        for &chunk in &chunks {
            world.write(chunk);
        }
        let out = bits(&world.attend(&chunks));
        let mut rest = &out[..];
        for (sequence, start, end) in chunks {
            let (ours, others) = rest.split_at((end - start) * heads.0 * head_dim);
            together[sequence].extend(ours);
            rest = others;
        }
    }
    assert!(alone == together, "chunks of {chunk}, {threads} threads");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn bits_do_not_depend_on_chunks_mates_or_threads(
        heads in prop::sample::select(vec![(1, 1), (4, 2), (3, 1), (8, 2), (14, 2)]),
        window in prop::option::of(1_usize..50),
        lens in prop::collection::vec(1_usize..90, 1..5),
        chunk in 1_usize..100,
        threads in 1_usize..5,
    ) {
        bits_do_not_depend_on_the_step::<f32>(heads, window, &lens, chunk, threads);
        bits_do_not_depend_on_the_step::<bf16>(heads, window, &lens, chunk, threads);
    }
}

/// The last of 40 queries, alone, with scores times `scale`.
fn attend_scaled(scale: f32) -> Result<Vec<f32>, ArgumentError> {
    let mut world = World::<f32>::new((1, 1), 16, None, &[40]);
    world.write((0, 0, 40));
    let mut out = vec![f32::NAN; 16];
    paged_attention(
        Rows::contiguous(&world.query[0][39 * 16..], 16),
        &AttentionLayer {
            scale,
            ..world.layer()
        },
        &Sequences {
            block_table: Rows::contiguous(&world.table, world.blocks_per_row),
            rows: &[0],
            query_start_loc: &[0, 1],
            seq_lens: &[40],
        },
        RowsMut::contiguous(&mut out, 16),
    )?;
    Ok(out)
}

#[test]
fn scores_of_any_size_have_a_softmax() {
    let likeliest = attend_scaled(1e4).expect("a good call");
    for scale in [1e8, 1e10, 1e12, 1e30] {
        assert_eq!(attend_scaled(scale).expect("a good call"), likeliest);
    }
}

#[test]
fn a_scale_that_is_not_positive_is_refused() {
    for (scale, got) in [(0.0, "0"), (-0.125, "-0.125"), (f32::NAN, "NaN")] {
        let error = attend_scaled(scale).expect_err("the scale is wrong");
        assert_eq!(
            error.to_string(),
            format!("scale: expected above 0, got {got}")
        );
    }
}

/// The error for a changed copy of a good call.
fn refusal(change: impl FnOnce(&mut World<f32>, &mut [i32], &mut [i32], &mut [i32])) -> String {
    let mut world = World::<f32>::new((2, 1), 16, None, &[20]);
    world.write((0, 0, 20));
    let (mut rows, mut starts, mut seq_lens) = ([0], [0, 1], [20]);
    change(&mut world, &mut rows, &mut starts, &mut seq_lens);
    let mut out = vec![0.0; 32];
    let error: ArgumentError = paged_attention(
        Rows::contiguous(&world.query[0][..32], 32),
        &world.layer(),
        &Sequences {
            block_table: Rows::contiguous(&world.table, world.blocks_per_row),
            rows: &rows,
            query_start_loc: &starts,
            seq_lens: &seq_lens,
        },
        RowsMut::contiguous(&mut out, 32),
    )
    .expect_err("the call is wrong");
    error.to_string()
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let cases = [
        (
            refusal(|_, rows, _, _| rows[0] = 1),
            "rows: expected lines in 0..1, got 1",
        ),
        (
            refusal(|_, rows, _, _| rows[0] = -1),
            "rows: expected lines in 0..1, got -1",
        ),
        (
            refusal(|_, _, starts, _| starts[1] = 2),
            "query_start_loc: expected ascending from 0 to 1, got [0, 2]",
        ),
        (
            refusal(|_, _, _, lens| lens[0] = 0),
            "seq_lens: expected lengths in 1..=48, got 0",
        ),
        (
            refusal(|_, _, _, lens| lens[0] = 49),
            "seq_lens: expected lengths in 1..=48, got 49",
        ),
        (
            refusal(|world, _, _, _| world.table[1] = 6),
            "block_table: expected blocks in 0..6, got 6",
        ),
        (
            refusal(|world, _, _, _| world.table[0] = -1),
            "block_table: expected blocks in 0..6, got -1",
        ),
        (
            refusal(|world, _, _, _| world.window = Some(0)),
            "window: expected at least 1, got 0",
        ),
        (
            refusal(|world, _, _, _| world.shape.head_dim = 24),
            "head_dim: expected a multiple of 16 up to 512, got 24",
        ),
        (
            refusal(|world, _, _, _| world.shape.num_blocks = 5),
            "cache: expected this many elements: 2560, got 3072",
        ),
    ];
    for (error, expected) in cases {
        assert_eq!(error, expected);
    }
}

#[test]
fn a_slot_outside_the_cache_is_refused() {
    let mut world = World::<f32>::new((1, 1), 16, None, &[4]);
    let number = vec![0.0; 16];
    for slot in [-1, (world.shape.num_blocks * BLOCK_SIZE) as i32] {
        let token = Rows::contiguous(&number, 16);
        let error = kv_write(token, token, &mut world.cache, world.shape, &[slot]);
        let expected = format!("slot_mapping: expected slots in 0..80, got {slot}");
        assert_eq!(error.expect_err("out of range").to_string(), expected);
    }
    assert!(world.cache.iter().all(|number| number.is_nan()));
}
