//! [`Tiles`] in plain code, after the pseudo-code of Intel's manual, so that tests need no machine with AMX.

use super::{INPUTS, NUM_TILES, ROWS, Tiles, WEIGHTS, WORDS, span};

type Tile = [[u32; WORDS]; ROWS];

/// Eight tiles as arrays.
pub(crate) struct EmulatedTiles {
    rows: usize,
    tiles: [Tile; NUM_TILES],
}

impl Tiles for EmulatedTiles {
    fn configure(rows: usize) -> Self {
        assert!((1..=ROWS).contains(&rows));
        let tiles = [[[0; WORDS]; ROWS]; NUM_TILES];
        Self { rows, tiles }
    }

    fn start<const C: usize>(&mut self, row: &[f32]) {
        const { assert!(C < INPUTS) };
        let words: [f32; WORDS] = *row.first_chunk().expect("a row");
        self.tiles[C][..self.rows].fill(words.map(f32::to_bits));
    }

    fn load_inputs<const A: usize>(&mut self, words: &[u32]) {
        const { assert!(INPUTS <= A && A < WEIGHTS) };
        let words = &words[..self.rows * WORDS];
        self.tiles[A][..self.rows].copy_from_slice(words.as_chunks().0);
    }

    fn load_weights<const B: usize>(&mut self, words: &[u32], stride: usize) {
        const { assert!(WEIGHTS <= B && B < NUM_TILES) };
        let words = &words[..span(ROWS, stride)];
        for (row, words) in self.tiles[B].iter_mut().zip(words.chunks(stride)) {
            row.copy_from_slice(&words[..WORDS]);
        }
    }

    fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self) {
        let (inputs, weights) = (self.tiles[A], self.tiles[B]);
        for (sums, inputs) in self.tiles[C][..self.rows].iter_mut().zip(&inputs) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let weights = weights.map(|row| row[n]);
                *sum = add_pairs(f32::from_bits(*sum), inputs, &weights).to_bits();
            }
        }
    }

    fn store<const C: usize>(&self, words: &mut [u32], stride: usize) {
        let words = &mut words[..span(self.rows, stride)];
        for (row, words) in self.tiles[C].iter().zip(words.chunks_mut(stride)) {
            words[..WORDS].copy_from_slice(row);
        }
    }
}

fn add_pairs(sum: f32, inputs: &[u32; WORDS], weights: &[u32; ROWS]) -> f32 {
    let mut sums = [0.0; 2];
    for (input, weight) in inputs.iter().zip(weights) {
        for (sum, shift) in sums.iter_mut().zip([16, 0]) {
            let half = |word: u32| flushed(f32::from_bits(word << shift & 0xffff_0000));
            *sum = flushed(half(*input).mul_add(half(*weight), *sum));
        }
    }
    flushed(flushed(sum) + flushed(sums[0] + sums[1]))
}

/// Zero of the same sign for a subnormal number.
fn flushed(number: f32) -> f32 {
    if number.is_subnormal() {
        0.0_f32.copysign(number)
    } else {
        number
    }
}
