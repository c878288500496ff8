//! Updates of adapters against float64, and bit for bit against themselves.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut, bf16,
    gemm::low_rank::{LowRank, RowAdapters, add},
    memory::pool,
};

const IN: usize = 150;
const OUT: usize = 83;

/// A part: where its outputs begin, how many there are, its rank and its scale.
type Shape = (usize, usize, usize, f32);

struct Adapter<T: Element> {
    shapes: Vec<Shape>,
    seed: u32,
    packed: LowRank<T>,
}

impl<T: Element> Adapter<T> {
    fn new(seed: u32, shapes: &[Shape]) -> Self {
        let mut packed = LowRank::new(IN, OUT);
        for (part, &(first, outputs, rank, scale)) in shapes.iter().enumerate() {
            let (a, b) = Self::weights(seed, part, (outputs, rank));
            let (a, b) = (Rows::contiguous(&a, IN), Rows::contiguous(&b, rank));
            packed.push(first, scale, a, b).expect("it fits");
        }
        let shapes = shapes.to_vec();
        Self {
            shapes,
            seed,
            packed,
        }
    }

    fn weights(seed: u32, part: usize, (outputs, rank): (usize, usize)) -> (Vec<T>, Vec<T>) {
        let seed = 100 * seed + 2 * part as u32;
        (numbers(seed, rank * IN), numbers(seed + 1, outputs * rank))
    }

    /// `out` of one row plus what the adapter adds to it, in float64.
    fn oracle<X: Element>(&self, x: &[X], out: &mut [f64]) {
        let x = wide(x);
        for (part, &(first, outputs, rank, scale)) in self.shapes.iter().enumerate() {
            let (a, b) = Self::weights(self.seed, part, (outputs, rank));
            let dot = |weights: &[f64], x: &[f64]| {
                let products = weights.iter().zip(x).map(|(w, x)| w * x);
                products.sum::<f64>()
            };
            let hidden: Vec<f64> = wide(&a).chunks(IN).map(|row| dot(row, &x)).collect();
            for (out, row) in out[first..].iter_mut().zip(wide(&b).chunks(rank)) {
                *out += f64::from(scale) * dot(row, &hidden);
            }
        }
    }
}

/// Ranks on both sides of a register, a strip and a pair; parts that leave outputs out.
fn adapters<T: Element>() -> Vec<Adapter<T>> {
    vec![
        Adapter::new(1, &[(0, OUT, 16, 0.5)]),
        Adapter::new(2, &[(0, 33, 7, 2.0), (40, 16, 65, 1.0), (70, 13, 1, -3.0)]),
        Adapter::new(3, &[]),
        Adapter::new(4, &[(5, 40, 32, 0.25)]),
    ]
}

fn run<T: Element, X: Element, O: Element>(
    adapters: &[Adapter<T>],
    slots: &[i32],
    x: &[X],
    out: &[O],
) -> Vec<O> {
    let updates: Vec<_> = adapters.iter().map(|one| Some(&one.packed)).collect();
    let rows = RowAdapters {
        slots,
        selected: None,
    };
    let rows = rows.sorted(adapters.len()).expect("slots that there are");
    let mut out = out.to_vec();
    let x = Rows::contiguous(x, IN);
    add(&updates, &rows, x, RowsMut::contiguous(&mut out, OUT)).expect("the shapes fit");
    out
}

fn check<T: Element, X: Element, O: Element>(slots: &[i32]) {
    let adapters = adapters::<T>();
    let x = numbers::<X>(7, slots.len() * IN);
    let before = numbers::<O>(8, slots.len() * OUT);
    let got = run(&adapters, slots, &x, &before);
    for (row, &slot) in slots.iter().enumerate() {
        let (at, x) = (row * OUT..(row + 1) * OUT, &x[row * IN..(row + 1) * IN]);
        let mut expected = wide(&before[at.clone()]);
        if slot == 0 {
            assert_eq!(bits(&got[at.clone()]), bits(&before[at]), "row {row}");
            continue;
        }
        adapters[slot as usize - 1].oracle(x, &mut expected);
        // Chains of 150 and of 65 additions of products.
        let what = format!("row {row} of slot {slot}");
        assert_close(&got[at], &expected, rounding::<O>(), 2e-2, &what);
    }
}

#[test]
fn rows_get_the_update_of_their_adapter_and_no_other() {
    let slots = [2, 0, 1, 4, 0, 3, 1, 1, 2, 4, 0, 1];
    check::<f32, f32, f32>(&slots);
    check::<bf16, bf16, bf16>(&slots);
    check::<bf16, f32, bf16>(&slots);
    check::<bf16, bf16, f32>(&slots);
    check::<f32, f32, f32>(&[2; 40]);
}

#[test]
fn bits_of_a_row_do_not_depend_on_the_others() {
    let adapters = adapters::<bf16>();
    let x = numbers::<bf16>(7, 90 * IN);
    let before = numbers::<bf16>(8, 90 * OUT);
    let of = |row: usize, slot: i32| {
        let (x, out) = (&x[row * IN..][..IN], &before[row * OUT..][..OUT]);
        bits(&run(&adapters, &[slot], x, out))
    };
    for len in [1, 2, 13, 15, 29, 90] {
        for mix in [1, 2, 5] {
            let slots: Vec<i32> = (0..len).map(|row| row % mix).collect();
            let alone: Vec<u32> = (0..len)
                .flat_map(|row| of(row as usize, slots[row as usize]))
                .collect();
            for threads in [1, 2, 3] {
                pool::set_num_threads(threads);
                let rows = len as usize;
                let together = run(&adapters, &slots, &x[..rows * IN], &before[..rows * OUT]);
                assert_eq!(bits(&together), alone, "{len} rows, {mix} slots, {threads}");
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_leaves_the_others_alone() {
    let adapters = adapters::<f32>();
    let mut x = numbers::<f32>(7, 3 * IN);
    let before = numbers::<f32>(8, 3 * OUT);
    let expected = run(&adapters, &[1, 1, 1], &x, &before);
    x[IN] = f32::NAN;
    let got = run(&adapters, &[1, 1, 1], &x, &before);
    assert!(got[OUT..2 * OUT].iter().all(|number| number.is_nan()));
    assert_eq!(got[..OUT], expected[..OUT]);
    assert_eq!(got[2 * OUT..], expected[2 * OUT..]);
}

#[test]
fn selected_rows_have_the_adapter_of_their_token() {
    let rows = RowAdapters {
        slots: &[0, 2, 1],
        selected: Some(&[1, 0, 2, 1]),
    };
    let sorted = rows.sorted(2).expect("valid");
    assert_eq!(sorted.as_slice(), [(1, 2), (2, 0), (2, 3)]);
    let error = rows.sorted(1).expect_err("a slot that there is not");
    assert_eq!(
        error.to_string(),
        "adapters: expected slots in 0..=1, got 2"
    );
    let rows = RowAdapters {
        slots: &[0],
        selected: Some(&[1]),
    };
    assert!(rows.sorted(1).is_err());
}

#[test]
fn a_slot_without_a_place_among_the_updates_is_refused() {
    let rows = RowAdapters {
        slots: &[2],
        selected: None,
    };
    let rows = rows.sorted(2).expect("valid");
    let adapters = adapters::<f32>();
    let mut out = vec![0.0_f32; OUT];
    let updates = [Some(&adapters[0].packed)];
    let x = vec![0.0_f32; IN];
    let (x, out) = (Rows::contiguous(&x, IN), RowsMut::contiguous(&mut out, OUT));
    let error = add(&updates, &rows, x, out).expect_err("two slots, one update");
    assert_eq!(
        error.to_string(),
        "adapters: expected slots in 0..=1, got 2"
    );
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let (a, b) = (vec![0.0_f32; 2 * IN], vec![0.0_f32; 2 * OUT]);
    let push = |first, a_width, b_width| {
        let mut update = LowRank::new(IN, OUT);
        let (a, b) = (Rows::contiguous(&a, a_width), Rows::contiguous(&b, b_width));
        let result = update.push(first, 1.0, a, b);
        result.map_err(|error| error.to_string())
    };
    assert_eq!(push(0, IN, 2), Ok(()));
    assert_eq!(
        push(0, 2 * IN, 1),
        Err("a: expected in_features, 150, got 300".into())
    );
    assert_eq!(
        push(0, IN, 1),
        Err("b: expected the rows of a, 2, got 1".into())
    );
    assert_eq!(
        push(1, IN, 2),
        Err("b: expected outputs in 0..83, got 1..84".into())
    );
}
