//! Activations against float64.

use crate::oracle::{assert_close, bits, numbers, rounding, wide};
use chairlift_kernels::{
    Element, Rows, RowsMut, bf16,
    ops::activation::{Activation, activate, activate_mul, activate_mul_apart},
};

const WIDTHS: [usize; 9] = [1, 7, 8, 15, 16, 17, 33, 64, 1000];

/// `1 - erf(z)` for z >= 0: the series of erf, or the continued fraction where that loses digits.
fn erfc(z: f64) -> f64 {
    let root = std::f64::consts::PI.sqrt();
    if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        return 1.0 - 2.0 / root * (-z * z).exp() * sum;
    }
    let fraction = (1..200)
        .rev()
        .fold(z, |rest, n| z + f64::from(n) / 2.0 / rest);
    (-z * z).exp() / root / fraction
}

fn activation_oracle(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let small = x.abs() * erfc(x.abs() / 2.0_f64.sqrt()) / 2.0;
            x.max(0.0) - small
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / (1.0 + (-2.0 * inner).exp())
        }
        Activation::Relu2 => x.max(0.0).powi(2),
    }
}

fn activations_agree<T: Element>() {
    for activation in Activation::ALL {
        for width in WIDTHS {
            let mut x = numbers::<T>(1, 3 * 2 * width);
            // Nearly closed, where a power of -x has an error of x units in the last place.
            x[0] = T::from_f32(if activation == Activation::Silu {
                -60.0
            } else {
                -5.0
            });
            let rows = Rows::contiguous(&x, 2 * width);
            let mut gated = vec![T::from_f32(f32::NAN); 3 * width];
            activate_mul(activation, rows, RowsMut::contiguous(&mut gated, width))
                .expect("it fits");
            let (gate, up) = rows.split_at(width);
            let mut apart = vec![T::from_f32(f32::NAN); 3 * width];
            let out = RowsMut::contiguous(&mut apart, width);
            activate_mul_apart(activation, gate, up, out).expect("it fits");
            assert_eq!(bits(&apart), bits(&gated));
            let mut plain = vec![T::from_f32(f32::NAN); 3 * 2 * width];
            activate(activation, rows, RowsMut::contiguous(&mut plain, 2 * width))
                .expect("it fits");
            let numbers = wide(&x);
            let oracle = |x: &f64| activation_oracle(activation, *x);
            let expected: Vec<f64> = numbers.iter().map(oracle).collect();
            let products: Vec<f64> = numbers
                .chunks(2 * width)
                .flat_map(|row| {
                    let (gate, up) = row.split_at(width);
                    gate.iter().zip(up).map(|(gate, up)| oracle(gate) * up)
                })
                .collect();
            for (out, expected) in [(&gated, &products), (&plain, &expected)] {
                for (part, error) in [(0..1, 2e-5), (1..out.len(), 1e-6)] {
                    let relative = 1.01 * rounding::<T>() + error;
                    let (out, expected) = (&out[part.clone()], &expected[part]);
                    assert_close(out, expected, relative, 1e-30, activation.name());
                }
            }
        }
    }
}

#[test]
fn activations_agree_with_float64() {
    activations_agree::<f32>();
    activations_agree::<bf16>();
}

#[test]
fn activations_have_the_right_ends() {
    let x = [
        f32::NEG_INFINITY,
        -1e30,
        -100.0,
        100.0,
        1e30,
        f32::INFINITY,
        f32::NAN,
    ];
    for activation in Activation::ALL {
        let mut out = [0.0; 7];
        let rows = RowsMut::contiguous(&mut out, 7);
        activate(activation, Rows::contiguous(&x, 7), rows).expect("it fits");
        assert!(out[0].is_nan() || out[0] == 0.0, "torch has -inf * 0");
        assert!(out[1] == 0.0 && out[2].abs() < 1e-30, "{activation:?}");
        let ends = match activation {
            Activation::Relu2 => [1e4, f32::INFINITY, f32::INFINITY],
            _ => [100.0, 1e30, f32::INFINITY],
        };
        assert_eq!(out[3..6], ends);
        assert!(out[6].is_nan());
    }
}
