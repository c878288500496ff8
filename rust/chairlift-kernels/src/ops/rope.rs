//! Rotary position embedding (Su et al., 2021), with the norm per head of Qwen3.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
    ops::norm::inverse_rms,
};
use std::ops::Range;

/// A norm over each head before the rotation.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a, T> {
    /// `[head_dim]`.
    pub weight: &'a [T],
    /// Added to the mean square.
    pub eps: f32,
}

/// Rotates each head of `x` in place by the angles of its token's position.
///
/// Coordinate `d` pairs with `d + head_dim / 2`, as in Llama.
///
/// Shapes: `x` `[T, num_heads * head_dim]`; `positions` `[T]`; `cos_sin` `[max_position, head_dim]`,
/// cosines in the first half of a row and sines in the second.
///
/// # Errors
/// If the shapes do not fit each other, or a position has no row in `cos_sin`.
pub fn rope<T: Element>(
    x: RowsMut<'_, T>,
    positions: &[i32],
    cos_sin: Rows<'_, f32>,
    norm: Option<HeadNorm<'_, T>>,
) -> Result<(), ArgumentError> {
    let head_dim = cos_sin.width();
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(ArgumentError::new("cos_sin", "an even width", head_dim));
    }
    if !x.width().is_multiple_of(head_dim) {
        let expected = format_args!("a width that is a multiple of {head_dim}");
        return Err(ArgumentError::new("x", expected, x.width()));
    }
    expect_equal("positions", "one per token:", x.len(), positions.len())?;
    if let Some(norm) = norm {
        expect_equal("norm_weight", "head_dim,", head_dim, norm.weight.len())?;
    }
    if let Some(position) = positions
        .iter()
        .find(|&&position| usize::try_from(position).map_or(true, |p| p >= cos_sin.len()))
    {
        let expected = format_args!("positions in 0..{}", cos_sin.len());
        return Err(ArgumentError::new("positions", expected, position));
    }
    let (width, stride) = (x.width(), x.stride());
    let tokens = x.len();
    let x = Disjoint::new(x.into_slice());
    pool::split(tokens, pool::grain(width), |tokens| {
        dispatch(Rope {
            x,
            width,
            stride,
            positions,
            cos_sin,
            norm,
            tokens,
        });
    });
    Ok(())
}

struct Rope<'a, T> {
    x: Disjoint<'a, T>,
    width: usize,
    stride: usize,
    positions: &'a [i32],
    cos_sin: Rows<'a, f32>,
    norm: Option<HeadNorm<'a, T>>,
    tokens: Range<usize>,
}

impl<T: Element> Kernel for Rope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for token in self.tokens {
            let start = token * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let heads = unsafe { self.x.take(start..start + self.width) };
            let angles = self.cos_sin.row(self.positions[token] as usize);
            let (cos, sin) = angles.split_at(angles.len() / 2);
            for head in heads.chunks_exact_mut(angles.len()) {
                match self.norm {
                    Some(norm) => {
                        let scale = inverse_rms::<I, T>(head, norm.eps);
                        rotate(head, cos, sin, Some((norm.weight, scale)));
                    }
                    None => rotate(head, cos, sin, None),
                }
            }
        }
    }
}

/// Rotates one head; `norm` is the weight and factor that come before.
#[inline(always)]
fn rotate<T: Element>(head: &mut [T], cos: &[f32], sin: &[f32], norm: Option<(&[T], f32)>) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (cos, sin) = (&cos[..half], &sin[..half]);
    for d in 0..half {
        let (mut a, mut b) = (first[d].to_f32(), second[d].to_f32());
        if let Some((weight, scale)) = norm {
            a *= scale * weight[d].to_f32();
            b *= scale * weight[d + half].to_f32();
        }
        first[d] = T::from_f32(a * cos[d] - b * sin[d]);
        second[d] = T::from_f32(b * cos[d] + a * sin[d]);
    }
}
