//! How wide a tile of sums in registers is, and so a panel of weights.

use crate::isa::{
    Isa,
    dispatch::{Kernel, dispatch},
};

/// A panel is this many registers wide.
pub(crate) const REGISTERS: usize = 2;
/// Outputs of the widest panel.
pub(crate) const MAX_WIDTH: usize = 32;

/// Outputs of a panel on this machine.
pub(crate) fn panel_width() -> usize {
    struct PanelWidth;

    impl Kernel for PanelWidth {
        type Output = usize;

        #[inline(always)]
        fn run<I: Isa>(self) -> usize {
            REGISTERS * I::LANES
        }
    }

    dispatch(PanelWidth)
}
