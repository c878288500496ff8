//! What a draw is computed from beside its logits.

use crate::{
    error::{ArgumentError, expect_equal},
    memory::rows::Rows,
    sampling::{bans::BITS, states::SequenceStates},
};
use chairlift_draws::mask_line::NOT_COMPUTED;

/// How to draw for each row, `[S]` each.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// 0 is greedy.
    pub temperature: &'a [f32],
    /// 0 is off.
    pub top_k: &'a [i32],
    /// 1 is off.
    pub top_p: &'a [f32],
    /// 0 is off.
    pub min_p: &'a [f32],
    /// 64 bits.
    pub seed: &'a [i64],
    /// Which of the n answers.
    pub index: &'a [i32],
    /// The position of the token that is drawn.
    pub position: &'a [i32],
    /// Not 0 where the log probability and the rank are wanted, or candidates; None wants all.
    pub scored: Option<&'a [i32]>,
}

impl Parameters<'_> {
    pub(super) fn check(&self, rows: usize) -> Result<(), ArgumentError> {
        let Parameters {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            index,
            position,
            scored,
        } = *self;
        for (name, len) in [
            ("temperature", temperature.len()),
            ("top_k", top_k.len()),
            ("top_p", top_p.len()),
            ("min_p", min_p.len()),
            ("seed", seed.len()),
            ("index", index.len()),
            ("position", position.len()),
            ("scored", scored.map_or(rows, <[i32]>::len)),
        ] {
            expect_equal(name, "one per row:", rows, len)?;
        }
        let out_of_range =
            |name, expected: &str, got: f64| Err(ArgumentError::new(name, expected, got));
        for row in 0..rows {
            if !(0.0..f32::INFINITY).contains(&temperature[row]) {
                return out_of_range(
                    "temperature",
                    "finite and at least 0",
                    temperature[row].into(),
                );
            }
            if top_k[row] < 0 {
                return out_of_range("top_k", "at least 0", top_k[row].into());
            }
            if !(top_p[row] > 0.0 && top_p[row] <= 1.0) {
                return out_of_range("top_p", "above 0 and at most 1", top_p[row].into());
            }
            if !(0.0..=1.0).contains(&min_p[row]) {
                return out_of_range("min_p", "0 to 1", min_p[row].into());
            }
        }
        Ok(())
    }

    /// Whether the log probability and the rank of a row are wanted.
    pub(super) fn are_scored(&self, row: usize) -> bool {
        self.scored.is_none_or(|scored| scored[row] != 0)
    }
}

/// The masks of a step: bit i of a line says that token i may be drawn.
#[derive(Debug, Clone, Copy)]
pub struct MaskLines<'a> {
    /// `[M, ceil(vocab_size / 32)]`, the least significant bit first.
    pub bits: Rows<'a, i32>,
    /// `[S]`: the line of each draw; [`FREE`](chairlift_draws::mask_line::FREE) is none, and [`NOT_COMPUTED`] gives no token.
    pub of_draw: &'a [i32],
}

impl<'a> MaskLines<'a> {
    /// Whether the constraint of a draw cannot be computed.
    pub fn is_too_complex(&self, draw: usize) -> bool {
        self.of_draw[draw] == NOT_COMPUTED
    }

    /// Checks the masks against the draws of a step.
    ///
    /// # Errors
    /// If they do not fit, or a line is none of them.
    pub fn check(&self, num_draws: usize, vocab_size: usize) -> Result<(), ArgumentError> {
        let num_words = vocab_size.div_ceil(BITS);
        expect_equal("mask", "columns:", num_words, self.bits.width())?;
        expect_equal(
            "mask_of_draw",
            "one per row:",
            num_draws,
            self.of_draw.len(),
        )?;
        let num_masks = self.bits.len();
        let known = |&line: &i32| line < 0 || (line as usize) < num_masks;
        if let Some(line) = self.of_draw.iter().find(|line| !known(line)) {
            let expected = format_args!("lines below {num_masks}, or -1").to_string();
            return Err(ArgumentError::new("mask_of_draw", expected, line));
        }
        Ok(())
    }

    /// The mask of a draw.
    pub fn of(&self, draw: usize) -> Option<&'a [i32]> {
        let line = usize::try_from(self.of_draw[draw]).ok()?;
        Some(self.bits.row(line))
    }
}

/// The sequences of the draws, for those that ask for more than [`Parameters`] have.
#[derive(Debug, Clone, Copy)]
pub struct DrawSequences<'a> {
    pub states: &'a SequenceStates,
    /// `[S]`
    pub slots: &'a [i32],
    /// `[S]`: the token before the one that is drawn: the last, or a draft.
    pub last_tokens: &'a [i32],
}

impl DrawSequences<'_> {
    /// Tells the histories of all sequences their last tokens and drafts: a draw sees the drafts before it.
    pub(super) fn write_last(&self, positions: &[i32]) -> Result<(), ArgumentError> {
        for (row, &position) in positions.iter().enumerate() {
            let before = usize::try_from(position)
                .ok()
                .and_then(|position| position.checked_sub(1));
            let Some(before) = before else { continue };
            let (slot, token) = (self.slots[row] as usize, self.last_tokens[row]);
            if !self.states.write(slot, before, token) {
                let expected = "one behind the tokens that are known";
                return Err(ArgumentError::new("position", expected, position));
            }
        }
        Ok(())
    }
}
