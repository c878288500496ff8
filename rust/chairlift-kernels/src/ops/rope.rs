//! Rotary position embedding (Su et al., 2021), with the norm of queries and keys before it.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::rows::{IterMut, Rows, RowsMut},
    ops::norm::inverse_rms,
};

/// A norm of queries or keys before the rotation.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a, T> {
    /// `[head_dim]` for a norm of each head, `[num_heads * head_dim]` for one over all of them.
    pub weight: &'a [T],
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the weight.
    pub offset: f32,
}

/// How heads are rotated.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a, T> {
    /// `[max_position, rotary_dim]`: cosines in the first half of a row, sines in the second. The first `rotary_dim`
    /// numbers of a head are rotated, the others stay: all of them where that is 0.
    pub cos_sin: Rows<'a, f32>,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Coordinate `2 d` pairs with `2 d + 1`; else `d` with `d + rotary_dim / 2`, as in Llama.
    pub is_interleaved: bool,
    /// Before the rotation.
    pub norm: Option<HeadNorm<'a, T>>,
}

impl<'a, T> Rotation<'a, T> {
    /// Rotates all numbers of a head, paired as in Llama.
    #[must_use]
    pub fn new(cos_sin: Rows<'a, f32>, norm: Option<HeadNorm<'a, T>>) -> Self {
        Self {
            head_dim: cos_sin.width(),
            cos_sin,
            is_interleaved: false,
            norm,
        }
    }
}

/// Rotates each head of `x` in place by the angles of its token's position.
///
/// Shapes: `x` `[T, num_heads * head_dim]`; `positions` `[T]`.
///
/// # Errors
/// If the shapes do not fit each other, or a position has no row in `cos_sin`.
pub fn rope<T: Element>(
    x: RowsMut<'_, T>,
    positions: &[i32],
    rotation: Rotation<'_, T>,
) -> Result<(), ArgumentError> {
    let Rotation {
        cos_sin,
        head_dim,
        norm,
        ..
    } = rotation;
    let rotary_dim = cos_sin.width();
    if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        let expected = format_args!("an even width of at most {head_dim}");
        return Err(ArgumentError::new("cos_sin", expected, rotary_dim));
    }
    if !x.width().is_multiple_of(head_dim) {
        let expected = format_args!("a width that is a multiple of {head_dim}");
        return Err(ArgumentError::new("x", expected, x.width()));
    }
    expect_equal("positions", "one per token:", x.len(), positions.len())?;
    if let Some(norm) = norm.filter(|norm| norm.weight.len() != x.width()) {
        expect_equal("norm_weight", "head_dim,", head_dim, norm.weight.len())?;
    }
    if let Some(position) = positions
        .iter()
        .find(|&&position| usize::try_from(position).map_or(true, |p| p >= cos_sin.len()))
    {
        let expected = format_args!("positions in 0..{}", cos_sin.len());
        return Err(ArgumentError::new("positions", expected, position));
    }
    x.par_rows(|tokens| {
        dispatch(Rope {
            tokens,
            positions,
            rotation,
        });
    });
    Ok(())
}

struct Rope<'a, T> {
    tokens: IterMut<'a, T>,
    positions: &'a [i32],
    rotation: Rotation<'a, T>,
}

impl<T: Element> Kernel for Rope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rotation {
            cos_sin,
            head_dim,
            is_interleaved,
            norm,
        } = self.rotation;
        // One norm over all heads, by its weight.
        let over_all = norm.filter(|norm| norm.weight.len() != head_dim);
        for (token, heads) in self.tokens {
            let angles = cos_sin.row(self.positions[token] as usize);
            let (cos, sin) = angles.split_at(angles.len() / 2);
            let scale_of_all = over_all.map(|norm| inverse_rms::<I, T>(heads, norm.eps));
            // Heads without numbers are none.
            for (index, head) in heads.chunks_exact_mut(head_dim.max(1)).enumerate() {
                let norm = norm.map(|norm| {
                    if let Some(scale) = scale_of_all {
                        let head = index * head_dim..(index + 1) * head_dim;
                        (&norm.weight[head], scale, norm.offset)
                    } else {
                        let scale = inverse_rms::<I, T>(head, norm.eps);
                        (norm.weight, scale, norm.offset)
                    }
                });
                let (rotated, rest) = head.split_at_mut(angles.len());
                if is_interleaved {
                    rotate_neighbours(rotated, cos, sin, norm);
                } else if let Some(norm) = norm {
                    rotate(rotated, cos, sin, Some(norm));
                } else {
                    rotate(rotated, cos, sin, None);
                }
                if let Some((weight, scale, offset)) = norm {
                    for (number, weight) in rest.iter_mut().zip(&weight[angles.len()..]) {
                        let factor = scale * (weight.to_f32() + offset);
                        *number = T::from_f32(number.to_f32() * factor);
                    }
                }
            }
        }
    }
}

/// The weight of a head's norm, its factor, and what is added to the weight.
type Factors<'a, T> = (&'a [T], f32, f32);

/// Rotates the numbers of a head, each with the one half of them further.
#[inline(always)]
fn rotate<T: Element>(head: &mut [T], cos: &[f32], sin: &[f32], norm: Option<Factors<'_, T>>) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (cos, sin) = (&cos[..half], &sin[..half]);
    for d in 0..half {
        let (mut a, mut b) = (first[d].to_f32(), second[d].to_f32());
        if let Some((weight, scale, offset)) = norm {
            a *= scale * (weight[d].to_f32() + offset);
            b *= scale * (weight[d + half].to_f32() + offset);
        }
        first[d] = T::from_f32(a * cos[d] - b * sin[d]);
        second[d] = T::from_f32(b * cos[d] + a * sin[d]);
    }
}

/// Rotates the numbers of a head, each with its neighbour.
#[inline(always)]
fn rotate_neighbours<T: Element>(
    head: &mut [T],
    cos: &[f32],
    sin: &[f32],
    norm: Option<Factors<'_, T>>,
) {
    for (d, pair) in head.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let [mut a, mut b] = pair.map(T::to_f32);
        if let Some((weight, scale, offset)) = norm {
            a *= scale * (weight[2 * d].to_f32() + offset);
            b *= scale * (weight[2 * d + 1].to_f32() + offset);
        }
        *pair = [
            T::from_f32(a * cos[d] - b * sin[d]),
            T::from_f32(b * cos[d] + a * sin[d]),
        ];
    }
}
