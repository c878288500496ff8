//! The walk over emulated tiles, on whatever machine: against float64, the layers themselves and itself.

use crate::{
    Element, Rows, RowsMut, bf16,
    gemm::{
        amx_gemm::TiledProduct, bf16_pairs::PairProduct, linear::Linear, panels::Share,
        shares::split_panels,
    },
    isa::amx::emulated::EmulatedTiles,
    isa::{
        Isa,
        dispatch::{Kernel, dispatch, instruction_set},
        set::InstructionSet,
    },
    memory::pool,
    sampling::philox::philox4x32,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Reproducible numbers of -2 to 2.
fn numbers<T: Element>(seed: u32, len: usize) -> Vec<T> {
    let fours = (0..).flat_map(|index| philox4x32([index, seed, 0, 0], [1, 2]));
    let unit = fours.map(|word| f64::from(word) / f64::from(u32::MAX));
    let numbers = unit.map(|unit| T::from_f32((4.0 * unit - 2.0) as f32));
    numbers.take(len).collect()
}

/// A share by emulated tiles.
struct Emulated<'a, P>(Share<'a, P>);

impl<P: TiledProduct> Kernel for Emulated<'_, P> {
    type Output = ();

    const USES_DOT: bool = true;
    const USES_BF16: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        assert!(self.0.fits_tiles());
        self.0.run_by::<I, EmulatedTiles>();
    }
}

fn linear<O: Element>(layer: &Linear<bf16>, x: Rows<'_, bf16>, out: RowsMut<'_, O>) {
    split_panels((layer.out_features(), layer.in_features()), out, |target| {
        let product = PairProduct(layer.product(x));
        dispatch(Emulated(Share { product, target }));
    });
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn outputs(layer: &Linear<bf16>, x: &[bf16]) -> Vec<f32> {
    let x = Rows::contiguous(x, layer.in_features());
    let mut out = vec![f32::NAN; x.len() * layer.out_features()];
    linear(
        layer,
        x,
        RowsMut::contiguous(&mut out, layer.out_features()),
    );
    out
}

#[test]
fn layers_of_pairs_agree_with_float64() {
    for (m, n, k) in [
        (1, 1, 32),
        (2, 33, 96),
        (16, 31, 64),
        (17, 100, 32),
        (33, 32, 320),
        (250, 5, 32),
    ] {
        let (x, weight) = (numbers::<bf16>(1, m * k), numbers::<bf16>(2, n * k));
        let bias = (n % 2 == 1).then(|| numbers::<bf16>(3, n));
        let layer = Linear::new(Rows::contiguous(&weight, k), bias.as_deref()).expect("it fits");
        for (index, got) in outputs(&layer, &x).into_iter().enumerate() {
            let (row, column) = (index / n, index % n);
            let (x, w) = (&x[row * k..][..k], &weight[column * k..][..k]);
            let products = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64());
            let expected =
                products.sum::<f64>() + bias.as_ref().map_or(0.0, |b| b[column].to_f64());
            // A product of up to 4 is added k times, with a rounding each.
            let bound = 2_f64.powi(-22) * (k as f64).powf(1.5);
            assert!(
                (f64::from(got) - expected).abs() <= bound,
                "m {m}, n {n}, k {k}: {got}, {expected}"
            );
        }
    }
}

#[test]
fn layers_of_pairs_take_tiles_where_the_machine_has_them() {
    if instruction_set() != InstructionSet::Amx {
        return;
    }
    let (n, k) = (83, 96);
    let (weight, bias) = (numbers::<bf16>(1, n * k), numbers::<bf16>(2, n));
    let layer = Linear::new(Rows::contiguous(&weight, k), Some(&bias)).expect("it fits");
    for m in [1, 2, 16, 17, 31, 40, 250] {
        let x = numbers::<bf16>(3, m * k);
        let mut out = vec![f32::NAN; m * n];
        let rows = Rows::contiguous(&x, k);
        let forward = layer.forward(rows, RowsMut::contiguous(&mut out, n));
        forward.expect("the shapes fit");
        assert_eq!(bits(&out), bits(&outputs(&layer, &x)), "m {m}");
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_others() {
    let (n, k) = (83, 96);
    let weight = numbers::<bf16>(1, n * k);
    let layer = Linear::new(Rows::contiguous(&weight, k), None).expect("it fits");
    let x = numbers::<bf16>(2, 250 * k);
    let alone: Vec<u32> = x
        .chunks(k)
        .flat_map(|row| bits(&outputs(&layer, row)))
        .collect();
    for m in (1..=70).chain([239, 240, 241, 250]) {
        for threads in [1, 2, 3] {
            pool::set_num_threads(threads);
            let out = outputs(&layer, &x[..m * k]);
            assert!(bits(&out) == alone[..m * n], "m {m}, {threads} threads");
        }
    }
}

#[test]
fn rows_may_lie_apart_and_gaps_are_left_alone() {
    let (m, n, k, stride) = (19, 33, 64, 72);
    let weight = numbers::<bf16>(1, n * k);
    let layer = Linear::new(Rows::contiguous(&weight, k), None).expect("it fits");
    let x = numbers::<bf16>(2, m * stride);
    let dense: Vec<bf16> = x.chunks(stride).flat_map(|row| row[..k].to_vec()).collect();
    let expected = outputs(&layer, &dense);
    let mut out = vec![bf16::NEG_ONE; m * stride];
    let rows = Rows::new(&x, m, k, stride).expect("it fits");
    linear(
        &layer,
        rows,
        RowsMut::new(&mut out, m, n, stride).expect("it fits"),
    );
    for (row, expected) in out.chunks(stride).zip(expected.chunks(n)) {
        let rounded: Vec<bf16> = expected
            .iter()
            .map(|&number| bf16::from_f32(number))
            .collect();
        assert_eq!(row[..n], rounded);
        assert!(row[n..].iter().all(|&number| number == bf16::NEG_ONE));
    }
}

#[test]
fn no_rows_give_nothing() {
    let weight = numbers::<bf16>(1, 40 * 32);
    let layer = Linear::new(Rows::contiguous(&weight, 32), None).expect("it fits");
    assert!(outputs(&layer, &[]).is_empty());
}

#[test]
fn tiles_take_whole_steps() {
    let fits = |k: usize| {
        let weight = numbers::<bf16>(1, 40 * k);
        let (x, weight) = (numbers::<bf16>(2, 8 * k), Rows::contiguous(&weight, k));
        let x = Rows::contiguous(&x, k);
        let layer = &Linear::new(weight, None).expect("it fits");
        let fits = AtomicBool::new(false);
        let mut out = vec![0.0; 8 * 40];
        split_panels((40, k), RowsMut::contiguous(&mut out, 40), |target| {
            let product = PairProduct(layer.product(x));
            fits.store(Share { product, target }.fits_tiles(), Ordering::Relaxed);
        });
        fits.into_inner()
    };
    assert!(fits(32) && fits(96));
    assert!(!fits(48));
}
