//! Linear layers of groups against float64, and bit for bit against themselves.

use crate::oracle::{bits, numbers, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut, bf16,
    gemm::{
        blocks::{BlockType, quantize},
        grouped::GroupedLinear,
        quantize::Quantization,
    },
    memory::pool,
};
use proptest::prelude::*;

const BOTH: [Quantization; 2] = [Quantization::Int8, Quantization::Int4];

fn pack<T: Element>(weight: &[T], k: usize, quantization: Quantization) -> GroupedLinear {
    GroupedLinear::quantize(Rows::contiguous(weight, k), None, quantization).expect("it fits")
}

fn forward<T: Element, O: Element>(layer: &GroupedLinear, x: &[T]) -> Vec<O> {
    let rows = Rows::contiguous(x, layer.in_features());
    let mut out = vec![O::from_f32(f32::NAN); rows.len() * layer.out_features()];
    layer
        .forward(rows, RowsMut::contiguous(&mut out, layer.out_features()))
        .expect("the shapes fit");
    out
}

/// Half a step of the input's scale and half (int4: at most the largest clipped part) of the weight's
/// per product bound what quantisation may change.
fn check<T: Element>(m: usize, n: usize, k: usize, quantization: Quantization) {
    let weight = numbers::<T>(1, n * k);
    let x = numbers::<T>(2, m * k);
    let out = wide(&forward::<T, f32>(&pack(&weight, k, quantization), &x));
    let (weight, x) = (wide(&weight), wide(&x));
    let (x_step, w_step) = match quantization {
        Quantization::Int8 => (2.0 / 127.0, 2.0 / 127.0),
        // The range may shrink by a tenth, which clips.
        Quantization::Int4 => (2.0 / 127.0, 1.2 * 4.0 / 15.0),
    };
    for (index, got) in out.into_iter().enumerate() {
        let (x, w) = (&x[index / n * k..][..k], &weight[index % n * k..][..k]);
        let expected: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        let bound: f64 = x.iter().zip(w).fold(1e-3, |sum, (x, w)| {
            sum + (x.abs() + x_step) * w_step / 2.0 + w.abs() * x_step / 2.0
        });
        assert!(
            (got - expected).abs() <= bound,
            "{quantization:?}, m {m}, n {n}, k {k}: [{index}] is {got}, expected {expected}"
        );
    }
}

#[test]
fn layers_agree_with_float64_at_every_edge() {
    for quantization in BOTH {
        for n in [1, 15, 16, 17, 33] {
            for k in [1, 3, 4, 31, 32, 33, 64, 65, 127, 128, 130, 1057, 1088] {
                for m in [1, 5, 6, 7, 13, 18] {
                    check::<f32>(m, n, k, quantization);
                    check::<bf16>(m, n, k, quantization);
                }
            }
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_others() {
    // With a rest that fills no group of 128, and without.
    let cases = BOTH.map(|quantization| [(quantization, 150), (quantization, 128)]);
    for (quantization, k) in cases.into_iter().flatten() {
        let n = 83;
        let layer = pack(&numbers::<bf16>(1, n * k), k, quantization);
        let x = numbers::<bf16>(2, 300 * k);
        let alone: Vec<u32> = x
            .chunks(k)
            .flat_map(|row| bits(&forward::<bf16, f32>(&layer, row)))
            .collect();
        for m in (1..=70).chain([239, 240, 241, 300]) {
            for threads in [1, 2, 3] {
                pool::set_num_threads(threads);
                let out: Vec<f32> = forward(&layer, &x[..m * k]);
                assert!(bits(&out) == alone[..m * n], "m {m}, {threads} threads");
            }
        }
    }
}

/// FNV-1a (Fowler, Noll and Vo) over numbers.
fn checksum(bits: &[u32]) -> u64 {
    bits.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &bits| {
        (sum ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn bits_are_those_of_every_other_instruction_set() {
    let n = 83;
    let mut found = Vec::new();
    for (quantization, k) in [
        (Quantization::Int8, 150),
        (Quantization::Int8, 128),
        (Quantization::Int8, 704),
        (Quantization::Int4, 150),
    ] {
        let layer = pack(&numbers::<bf16>(1, n * k), k, quantization);
        let mut out = bits(&forward::<bf16, f32>(&layer, &numbers(2, 33 * k)));
        out.extend(bits(&forward::<f32, bf16>(&layer, &numbers(3, 20 * k))));
        found.push(checksum(&out));
    }
    assert_eq!(
        found,
        [
            0xd8c9_1a04_fb0d_1969,
            0xc6c1_cc1b_d6d8_a9ba,
            0x4bda_b64c_4fcd_4980,
            0x1bd0_3c49_671b_8f25
        ]
    );
}

/// A layer that `chairlift quantize` stored when all groups were of 32.
#[test]
fn bits_of_stored_groups_of_32_are_those_that_they_were() {
    let (n, k) = (83, 128);
    let weight: Vec<f32> = numbers::<bf16>(1, n * k)
        .into_iter()
        .map(bf16::to_f32)
        .collect();
    let row_bytes = BlockType::Int8Rotated.row_bytes(k).expect("whole blocks");
    let mut stored = vec![0; n * row_bytes];
    let (rows, out) = (
        Rows::contiguous(&weight, k),
        RowsMut::contiguous(&mut stored, row_bytes),
    );
    quantize(rows, BlockType::Int8Rotated, out).expect("the shapes fit");
    let rows = Rows::contiguous(&stored, row_bytes);
    let layer =
        GroupedLinear::from_blocks(rows, BlockType::Int8Rotated, None).expect("whole blocks");
    let mut out = bits(&forward::<bf16, f32>(&layer, &numbers(2, 33 * k)));
    out.extend(bits(&forward::<f32, bf16>(&layer, &numbers(3, 20 * k))));
    assert_eq!(checksum(&out), 0xfe77_5ab5_658b_8996);
}

#[test]
fn a_product_of_extremes_does_not_saturate() {
    let k = 4096;
    for quantization in BOTH {
        for sign in [1.0, -1.0] {
            let out: Vec<f32> = forward(&pack(&vec![sign; k], k, quantization), &vec![1.0_f32; k]);
            assert!(
                (out[0] - sign * k as f32).abs() < 0.01 * k as f32,
                "{out:?}"
            );
        }
    }
}

#[test]
fn nan_stays_in_its_row() {
    for quantization in BOTH {
        let layer = pack(&numbers::<f32>(1, 20 * 30), 30, quantization);
        let mut x = numbers::<f32>(2, 9 * 30);
        let sound: Vec<f32> = forward(&layer, &x);
        x[4 * 30] = f32::NAN;
        let out: Vec<f32> = forward(&layer, &x);
        assert!(out[4 * 20..5 * 20].iter().all(|number| number.is_nan()));
        assert_eq!(out[..4 * 20], sound[..4 * 20]);
        assert_eq!(out[5 * 20..], sound[5 * 20..]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn layers_agree_with_float64(m in 1_usize..20, n in 1_usize..60, k in 1_usize..200) {
        for quantization in BOTH {
            check::<f32>(m, n, k, quantization);
        }
    }
}
