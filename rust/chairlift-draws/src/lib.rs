//! What crosses from crate to crate in the place of a mask or of a token.
//!
//! A grammar gives each draw the line of its mask, the kernels draw a token, and the scheduler takes it: each of the three
//! reads numbers that another has written. `cuda/` has the same numbers.

#![forbid(unsafe_code)]

/// What a draw may have in the place of the line of a mask.
pub mod mask_line {
    /// Any token may be drawn.
    pub const FREE: i32 = -1;
    /// The constraint cannot be computed: the draw gives [`TOO_COMPLEX`](crate::token::TOO_COMPLEX).
    pub const NOT_COMPUTED: i32 = -2;
}

/// What a draw may give in the place of a token.
pub mod token {
    /// The logits are no distribution: one is NaN or +inf, or all are -inf.
    pub const NOT_FINITE: i32 = -1;
    /// Masks and bans leave no token to draw.
    pub const NO_TOKEN_LEFT: i32 = -2;
    /// The constraint cannot be computed.
    pub const TOO_COMPLEX: i32 = -3;
}
