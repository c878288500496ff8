//! Activations of a feed-forward layer, gated or not: `SiLU`, GELU by its two formulas, and squared `ReLU`.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::BLOCK,
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::rows::{IterMut, Rows, RowsMut},
};
use std::{f32::consts::LOG2_E, marker::PhantomData};

/// An activation.
///
/// Powers are of 2, whose exponents are rounded: where a result is nearly zero since a power of -x is, the
/// relative error is some x units in the last place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x / 2 (1 + erf(x / sqrt 2))` (Hendrycks and Gimpel, 2016).
    Gelu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `max(x, 0)^2` (So et al., 2021).
    Relu2,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 4] = [Self::Silu, Self::Gelu, Self::GeluTanh, Self::Relu2];

    /// Its name in the Python module.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Relu2 => "relu2",
        }
    }
}

/// `out = activation(x)`.
///
/// Shapes: `x`, `out` `[T, I]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn activate<T: Element>(
    activation: Activation,
    x: Rows<'_, T>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    expect_equal("x", "the width of out,", out.width(), x.width())?;
    expect_equal("out", "as many rows as x:", x.len(), out.len())?;
    run::<T, false>(activation, x, x, out);
    Ok(())
}

/// `out = activation(gate) * up`, where a row of `gate_up` holds the gates, then the ups.
///
/// Shapes: `gate_up` `[T, 2 I]`, `out` `[T, I]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn activate_mul<T: Element>(
    activation: Activation,
    gate_up: Rows<'_, T>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    expect_equal(
        "gate_up",
        "twice the width of out,",
        2 * out.width(),
        gate_up.width(),
    )?;
    expect_equal("out", "as many rows as gate_up:", gate_up.len(), out.len())?;
    let (gate, up) = gate_up.split_at(out.width());
    run::<T, true>(activation, gate, up, out);
    Ok(())
}

/// [`activate_mul`] of gates and ups that lie apart.
///
/// Shapes: `gate`, `up`, `out` `[T, I]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn activate_mul_apart<T: Element>(
    activation: Activation,
    gate: Rows<'_, T>,
    up: Rows<'_, T>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    expect_equal("gate", "the width of out,", out.width(), gate.width())?;
    expect_equal("up", "the width of out,", out.width(), up.width())?;
    expect_equal("out", "as many rows as gate:", gate.len(), out.len())?;
    expect_equal("up", "as many rows as gate:", gate.len(), up.len())?;
    run::<T, true>(activation, gate, up, out);
    Ok(())
}

/// `up` counts where GATED.
fn run<T: Element, const GATED: bool>(
    activation: Activation,
    x: Rows<'_, T>,
    up: Rows<'_, T>,
    out: RowsMut<'_, T>,
) {
    match activation {
        Activation::Silu => split::<T, Silu, GATED>(x, up, out),
        Activation::Gelu => split::<T, Gelu, GATED>(x, up, out),
        Activation::GeluTanh => split::<T, GeluTanh, GATED>(x, up, out),
        Activation::Relu2 => split::<T, Relu2, GATED>(x, up, out),
    }
}

fn split<T: Element, C: ActivationFn, const GATED: bool>(
    x: Rows<'_, T>,
    up: Rows<'_, T>,
    out: RowsMut<'_, T>,
) {
    out.par_rows(|rows| {
        dispatch(Activate::<T, C, GATED> {
            x,
            up,
            rows,
            function: PhantomData,
        });
    });
}

struct Activate<'a, T, C, const GATED: bool> {
    x: Rows<'a, T>,
    up: Rows<'a, T>,
    rows: IterMut<'a, T>,
    function: PhantomData<C>,
}

impl<T: Element, C: ActivationFn, const GATED: bool> Kernel for Activate<'_, T, C, GATED> {
    type Output = ();

    const USES_BF16: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (row, out) in self.rows {
            let x = self.x.row(row);
            if GATED {
                gated_row::<I, T, C>(x, self.up.row(row), out);
            } else {
                plain_row::<I, T, C>(x, out);
            }
        }
    }
}

#[inline(always)]
fn gated_row<I: Isa, T: Element, C: ActivationFn>(gate: &[T], up: &[T], out: &mut [T]) {
    let (outs, rest) = out.as_chunks_mut();
    let (gates, last_gate) = gate.as_chunks();
    let (ups, last_up) = up.as_chunks();
    for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
        gated_block::<I, T, C>(gate, up, out);
    }
    if !rest.is_empty() {
        let mut last = [T::default(); BLOCK];
        gated_block::<I, T, C>(&filled(last_gate), &filled(last_up), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn plain_row<I: Isa, T: Element, C: ActivationFn>(x: &[T], out: &mut [T]) {
    let (outs, rest) = out.as_chunks_mut();
    let (blocks, last_block) = x.as_chunks();
    for (out, x) in outs.iter_mut().zip(blocks) {
        plain_block::<I, T, C>(x, out);
    }
    if !rest.is_empty() {
        let mut last = [T::default(); BLOCK];
        plain_block::<I, T, C>(&filled(last_block), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The numbers, then zeros.
#[inline(always)]
fn filled<T: Element>(numbers: &[T]) -> [T; BLOCK] {
    let mut block = [T::default(); BLOCK];
    block[..numbers.len()].copy_from_slice(numbers);
    block
}

#[inline(always)]
fn gated_block<I: Isa, T: Element, C: ActivationFn>(
    gate: &[T; BLOCK],
    up: &[T; BLOCK],
    out: &mut [T; BLOCK],
) {
    let mut numbers = gate.map(T::to_f32);
    C::apply::<I>(&mut numbers);
    for (number, up) in numbers.iter_mut().zip(up) {
        *number *= up.to_f32();
    }
    T::round_block::<I>(&numbers, out);
}

#[inline(always)]
fn plain_block<I: Isa, T: Element, C: ActivationFn>(x: &[T; BLOCK], out: &mut [T; BLOCK]) {
    let mut numbers = x.map(T::to_f32);
    C::apply::<I>(&mut numbers);
    T::round_block::<I>(&numbers, out);
}

/// A function of one number, taken of as many as a power is taken of at once.
trait ActivationFn: Send + Sync {
    fn apply<I: Isa>(numbers: &mut [f32; BLOCK]);
}

/// Below this a gate is closed; 2 to its power is finite still.
const MIN_GATE: f32 = -87.0;

/// `x / (1 + e^-gate)` of each number.
#[inline(always)]
fn gate_by<I: Isa>(numbers: &mut [f32; BLOCK], gates: &[f32; BLOCK]) {
    let mut powers = [0.0; BLOCK];
    for (power, &gate) in powers.iter_mut().zip(gates) {
        *power = if gate < MIN_GATE { MIN_GATE } else { gate } * -LOG2_E;
    }
    I::exp2_block(&mut powers);
    for ((number, power), &gate) in numbers.iter_mut().zip(powers).zip(gates) {
        let divisor = if gate < MIN_GATE {
            f32::INFINITY
        } else {
            1.0 + power
        };
        *number /= divisor;
    }
}

struct Silu;

impl ActivationFn for Silu {
    #[inline(always)]
    fn apply<I: Isa>(numbers: &mut [f32; BLOCK]) {
        let gates = *numbers;
        gate_by::<I>(numbers, &gates);
    }
}

struct GeluTanh;

impl ActivationFn for GeluTanh {
    #[inline(always)]
    fn apply<I: Isa>(numbers: &mut [f32; BLOCK]) {
        // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
        const TWICE_ROOT: f32 = 1.595_769;
        let gates = numbers.map(|x| TWICE_ROOT * x * I::mul_add(0.044_715 * x, x, 1.0));
        gate_by::<I>(numbers, &gates);
    }
}

struct Relu2;

impl ActivationFn for Relu2 {
    #[inline(always)]
    fn apply<I: Isa>(numbers: &mut [f32; BLOCK]) {
        for number in numbers {
            // Written as a select that keeps NaN.
            let open = if *number < 0.0 { 0.0 } else { *number };
            *number = open * open;
        }
    }
}

struct Gelu;

impl Gelu {
    /// From here on the complement is far below the last place of any result.
    const MAX: f32 = 20.0;

    /// `erfc(z) = t e^(P(t) - z^2)` with `t = 1 / (1 + z / 2)`, highest power first: a Chebyshev fit whose
    /// relative error is below 1.2e-7 for every z >= 0 (Numerical Recipes, `erfcc`).
    const P: [f32; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ];
}

impl ActivationFn for Gelu {
    /// `max(x, 0) - |x| erfc(|x| / sqrt 2) / 2`: no digits cancel where the result is small.
    #[inline(always)]
    fn apply<I: Isa>(numbers: &mut [f32; BLOCK]) {
        let sizes = numbers.map(|x| {
            let size = x.abs();
            if size > Self::MAX { Self::MAX } else { size }
        });
        let inverse =
            sizes.map(|x| 1.0 / I::mul_add(x, std::f32::consts::FRAC_1_SQRT_2 / 2.0, 1.0));
        let mut powers = [0.0; BLOCK];
        for ((power, &x), &t) in powers.iter_mut().zip(&sizes).zip(&inverse) {
            let mut p = Self::P[0];
            for coefficient in &Self::P[1..] {
                p = I::mul_add(p, t, *coefficient);
            }
            *power = I::mul_add(-0.5 * x, x, p) * LOG2_E;
        }
        I::exp2_block(&mut powers);
        for (((number, power), size), t) in numbers.iter_mut().zip(powers).zip(sizes).zip(inverse) {
            let open = if *number > 0.0 { *number } else { 0.0 };
            *number = open - 0.5 * size * t * power;
        }
    }
}
