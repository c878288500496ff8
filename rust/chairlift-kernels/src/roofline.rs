//! What this machine can do at most: read memory, and multiply numbers that are in registers.
//!
//! A kernel is measured against these (Williams et al., 2009): it moves a known number of bytes and
//! does a known number of operations, so it cannot be faster than the slower of the two.

use crate::{
    isa::{
        Isa, amx,
        dispatch::{Kernel, dispatch, instruction_set},
        set::InstructionSet,
    },
    memory::pool,
};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-adds of `f32`.
    Float32,
    /// Dot products of pairs, by tiles if the machine can; where there is no such instruction, as [`Self::Float32`].
    Bfloat16,
    /// 8-bit factors, four products per 32-bit sum; without such an instruction 16-bit factors, two.
    Int8,
    /// The products of [`Self::Int8`]; without such an instruction 8-bit factors, 16-bit sums.
    Int4,
}

/// Reads all of a slice with all threads, each a contiguous share; gives something that depends on
/// every word.
pub fn read_memory(words: &[i32]) -> u32 {
    struct Read<'a>(&'a [i32]);

    impl Kernel for Read<'_> {
        type Output = u32;

        #[inline(always)]
        fn run<I: Isa>(self) -> u32 {
            let mut lanes = [0_u32; 128];
            let (chunks, rest) = self.0.as_chunks::<128>();
            for words in chunks {
                for (lane, word) in lanes.iter_mut().zip(words) {
                    *lane ^= word.cast_unsigned();
                }
            }
            // A share of a thread ends anywhere.
            for (lane, word) in lanes.iter_mut().zip(rest) {
                *lane ^= word.cast_unsigned();
            }
            lanes.into_iter().fold(0, |a, b| a ^ b)
        }
    }

    let total = AtomicU32::new(0);
    pool::split(words.len(), 1, |range| {
        total.fetch_xor(dispatch(Read(&words[range])), Ordering::Relaxed);
    });
    total.into_inner()
}

/// Multiplies and adds in registers with all threads, `rounds` times; gives the number of operations,
/// of which a multiplication and an addition are one each.
pub fn multiply_in_registers(arithmetic: Arithmetic, rounds: usize) -> usize {
    let num_operations = AtomicUsize::new(0);
    pool::run(pool::num_threads(), &|_| {
        num_operations.fetch_add(
            multiply_on_this_thread(arithmetic, rounds),
            Ordering::Relaxed,
        );
    });
    num_operations.into_inner()
}

/// Multiplies and adds on the calling thread; gives the number of operations.
fn multiply_on_this_thread(arithmetic: Arithmetic, rounds: usize) -> usize {
    struct Multiply(Arithmetic, usize);

    impl Kernel for Multiply {
        type Output = usize;

        const USES_DOT: bool = true;
        const USES_BF16: bool = true;

        #[inline(always)]
        fn run<I: Isa>(self) -> usize {
            let Self(arithmetic, rounds) = self;
            let products_per_word = match arithmetic {
                Arithmetic::Bfloat16 if I::HAS_PAIR_DOT => {
                    let pairs = I::splat_word(black_box(0x3e80_3e80));
                    floats::<I>(rounds, |sum, _| I::add_pair_dot(sum, pairs, pairs));
                    2
                }
                Arithmetic::Float32 | Arithmetic::Bfloat16 => {
                    let a = I::splat(black_box(0.5));
                    floats::<I>(rounds, |sum, b| I::mul_add_lanes(sum, a, b));
                    1
                }
                Arithmetic::Int8 | Arithmetic::Int4 if I::HAS_DOT => {
                    integers::<I>(rounds, |sum, x| I::add_dot(sum, x, x));
                    4
                }
                Arithmetic::Int8 => {
                    integers::<I>(rounds, |sum, x| I::add_i32(sum, I::multiply_i16(sum, x)));
                    2
                }
                Arithmetic::Int4 => {
                    integers::<I>(rounds, |sum, x| I::add_i16(sum, I::multiply_u8_i8(sum, x)));
                    4
                }
            };
            2 * products_per_word * rounds * chains::<I>() * I::LANES
        }
    }

    multiply_tiles(arithmetic, rounds).unwrap_or_else(|| dispatch(Multiply(arithmetic, rounds)))
}

/// Multiplies by AMX tiles and gives the number of operations; None where layers do not use tiles.
fn multiply_tiles(arithmetic: Arithmetic, rounds: usize) -> Option<usize> {
    match arithmetic {
        Arithmetic::Bfloat16 if instruction_set() == InstructionSet::Amx => {
            amx::multiply_in_registers(rounds)
        }
        _ => None,
    }
}

/// Sums that grow side by side at most.
const MAX_CHAINS: usize = 14;

/// Sums that grow side by side: enough to hide the latency of an instruction, six cycles where two of them
/// start in each, and few enough for sixteen registers where there are no more.
const fn chains<I: Isa>() -> usize {
    if I::LANES == 16 { MAX_CHAINS } else { 10 }
}

#[inline(always)]
fn floats<I: Isa>(rounds: usize, step: impl Fn(I::Vector, I::Vector) -> I::Vector) {
    let b = I::splat(black_box(0.25));
    let mut sums = [I::splat(black_box(1.0)); MAX_CHAINS];
    for _ in 0..rounds {
        for chain in 0..const { chains::<I>() } {
            sums[chain] = step(sums[chain], b);
        }
    }
    for sum in &sums[..const { chains::<I>() }] {
        let mut numbers = [0.0; 16];
        I::store(*sum, &mut numbers);
        black_box(numbers);
    }
}

#[inline(always)]
fn integers<I: Isa>(rounds: usize, step: impl Fn(I::Words, I::Words) -> I::Words) {
    let x = I::splat_word(black_box(0x0102_0304));
    let mut sums = [x; MAX_CHAINS];
    for chain in 0..const { chains::<I>() } {
        sums[chain] = I::splat_word(black_box(chain as u32));
    }
    for _ in 0..rounds {
        for chain in 0..const { chains::<I>() } {
            sums[chain] = step(sums[chain], x);
        }
    }
    for sum in &sums[..const { chains::<I>() }] {
        let mut numbers = [0.0; 16];
        I::store(I::convert(*sum), &mut numbers);
        black_box(numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let mut words = vec![0; 128 * 50];
        for place in [0, 127, 128 * 50 - 1] {
            words[place] = 1 << 7;
            assert_eq!(read_memory(&words), 1 << 7);
            words[place] = 0;
        }
    }

    #[test]
    fn operations_are_counted() {
        // Of one thread: another test of this process may set the number of threads.
        for (arithmetic, per_word) in [
            (Arithmetic::Float32, 1),
            (Arithmetic::Bfloat16, 1),
            (Arithmetic::Int8, 2),
            (Arithmetic::Int4, 4),
        ] {
            let few = multiply_on_this_thread(arithmetic, 3);
            let sums = few / (3 * 2 * per_word);
            assert_eq!(few, sums * 3 * 2 * per_word);
            // Or by four tiles of 256 sums.
            assert!(
                [10, MAX_CHAINS, 1024]
                    .iter()
                    .any(|chains| sums.is_multiple_of(*chains))
            );
            assert_eq!(multiply_on_this_thread(arithmetic, 6), 2 * few);
        }
    }
}
