//! What a device needs to draw as [`sample`](chairlift_kernels::sampling::sample) does, in one run of numbers.
//!
//! ```text
//! rows      [S, 16]         line of the mask | ends of the sections | candidates | penalties | filters
//! entries   [E, 2]          of each row: bans | ends | biases | counts | DRY, as token and value
//! masks     [M, num_words]  of constraints and allowed ids together
//! ```
//!
//! Only what a row asks for is listed: a row that asks for nothing has its 64 bytes. `cuda/include/chairlift/options.cuh` reads this.

use chairlift_draws::mask_line::{FREE, NOT_COMPUTED};
use chairlift_kernels::{
    ArgumentError, expect_equal,
    memory::pool,
    sampling::{
        bans::BITS,
        filters::Filters,
        inputs::{DrawSequences, MaskLines},
        penalties::Penalties,
        states::SequenceState,
    },
};
use parking_lot::Mutex;

/// Numbers of a row.
const ROW: usize = 16;
/// Bans, ends, biases, counts, DRY.
const SECTIONS: usize = 5;

/// What one row asks for.
#[derive(Debug)]
struct RowList {
    entries: Vec<[i32; 2]>,
    /// Where the sections that were listed end.
    ends: Vec<usize>,
    mask: Option<Vec<i32>>,
    is_too_complex: bool,
    vocab_size: usize,
    penalties: Penalties,
    filters: Filters,
    num_candidates: usize,
}

impl RowList {
    fn new(vocab_size: usize) -> Self {
        Self {
            entries: Vec::new(),
            ends: Vec::with_capacity(SECTIONS),
            mask: None,
            is_too_complex: false,
            vocab_size,
            penalties: Penalties::default(),
            filters: Filters::default(),
            num_candidates: 0,
        }
    }

    /// Lists the next section; ids outside the vocabulary are left out.
    fn section(&mut self, entries: impl IntoIterator<Item = (i32, i32)>) {
        let is_known =
            |&(id, _): &(i32, i32)| usize::try_from(id).is_ok_and(|id| id < self.vocab_size);
        let entries = entries.into_iter().filter(is_known);
        self.entries.extend(entries.map(|(id, value)| [id, value]));
        self.ends.push(self.entries.len());
    }

    /// Allows the tokens of a bitset alone, of those that are allowed.
    fn allow(&mut self, bits: &[i32]) {
        let num_words = self.vocab_size.div_ceil(BITS);
        let mask = self.mask.get_or_insert_with(|| vec![-1; num_words]);
        for (at, word) in mask.iter_mut().enumerate() {
            *word &= bits.get(at).copied().unwrap_or(0);
        }
    }

    /// Lists what a draw at a position changes of its logits, and its filters.
    fn add(&mut self, state: &mut SequenceState, position: usize) {
        let options = state.options();
        self.penalties = options.penalties;
        self.filters = options.filters;
        self.num_candidates = options.num_candidates;
        if let Some(allowed) = options.bans.allowed() {
            self.allow(allowed);
        }
        let tokens = state.tokens_before(position);
        let banned = options.bans.banned(tokens.unwrap_or_default());
        self.section(banned.map(|id| (id, 0)));
        let ends = options.no_end.end_ids.iter().map(|&id| (id, 0));
        self.section(ends.filter(|_| options.no_end.applies(position)));
        let biases = options.bias.iter();
        self.section(biases.map(|&(id, bias)| (id, bias.to_bits().cast_signed())));
        if options.penalties.are_off() {
            self.section([]);
        } else {
            let counts = state.counts_before(position);
            self.section(counts.map(|(id, count)| (id, count.output.cast_signed())));
        }
        let penalties = state.dry_penalties(position).into_iter();
        self.section(penalties.map(|(id, penalty)| (id, penalty.to_bits().cast_signed())));
    }

    /// The numbers of the row, whose mask gets a line and whose entries begin at `start`.
    fn numbers(&self, line: i32, start: usize) -> [i32; ROW] {
        let end_of = |section: usize| {
            let end = self.ends.get(section).copied();
            (start + end.unwrap_or(self.entries.len())) as i32
        };
        let bits = |number: f32| number.to_bits().cast_signed();
        let (penalties, filters) = (&self.penalties, &self.filters);
        [
            line,
            start as i32,
            end_of(0),
            end_of(1),
            end_of(2),
            end_of(3),
            end_of(4),
            self.num_candidates as i32,
            bits(penalties.repetition),
            bits(penalties.presence),
            bits(penalties.frequency),
            bits(filters.top_n_sigma),
            bits(filters.typical_p),
            bits(filters.xtc_probability),
            bits(filters.xtc_threshold),
            0,
        ]
    }
}

/// What the draws of a step ask for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Lists {
    /// `[S, 16]`
    pub rows: Vec<i32>,
    /// `[E, 2]`
    pub entries: Vec<i32>,
    /// `[M, ceil(vocab_size / 32)]`
    pub masks: Vec<i32>,
    /// The most that a draw asks for.
    pub num_candidates: usize,
}

/// Lists what draws ask for, each of which sees the drafts before it as accepted. A draw whose last token is negative is one of a
/// sequence that has none, and is not looked at.
///
/// # Errors
/// If the arguments do not fit each other, or a draw is not behind the tokens that are known.
///
/// # Panics
/// If listing another row panicked.
pub fn lists(
    sequences: DrawSequences<'_>,
    positions: &[i32],
    masks: Option<MaskLines<'_>>,
    vocab_size: usize,
) -> Result<Lists, ArgumentError> {
    let count = positions.len();
    expect_equal("slots", "one per row:", count, sequences.slots.len())?;
    let num_last = sequences.last_tokens.len();
    expect_equal("last_tokens", "one per row:", count, num_last)?;
    if let Some(masks) = &masks {
        masks.check(count, vocab_size)?;
    }
    write_last(sequences, positions)?;
    let rows = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    pool::split(count, 1, |range| {
        for row in range {
            let list = list(sequences, positions, masks, vocab_size, row);
            let mut rows = rows.lock();
            rows[row] = Some(list);
        }
    });
    let rows = rows.into_inner();
    let mut all = Lists::default();
    let mut num_masks = 0;
    for row in rows.into_iter().flatten() {
        let line = match &row.mask {
            _ if row.is_too_complex => NOT_COMPUTED,
            None => FREE,
            Some(mask) => {
                all.masks.extend_from_slice(mask);
                num_masks += 1;
                num_masks - 1
            }
        };
        all.rows.extend(row.numbers(line, all.entries.len() / 2));
        all.entries.extend(row.entries.iter().flatten());
        all.num_candidates = all.num_candidates.max(row.num_candidates);
    }
    all.num_candidates = all.num_candidates.min(vocab_size);
    Ok(all)
}

/// Tells the histories their last tokens and drafts. What they have behind a draw comes from draws that do not count.
fn write_last(sequences: DrawSequences<'_>, positions: &[i32]) -> Result<(), ArgumentError> {
    for (row, &position) in positions.iter().enumerate() {
        let (slot, token) = (sequences.slots[row] as usize, sequences.last_tokens[row]);
        let place = usize::try_from(position).unwrap_or_default();
        if token < 0 {
            continue;
        }
        if place > 0 && !sequences.states.write(slot, place - 1, token) {
            let expected = "one behind the tokens that are known";
            return Err(ArgumentError::new("position", expected, position));
        }
        sequences.states.forget_from(slot, place);
    }
    Ok(())
}

fn list(
    sequences: DrawSequences<'_>,
    positions: &[i32],
    masks: Option<MaskLines<'_>>,
    vocab_size: usize,
    row: usize,
) -> RowList {
    let mut list = RowList::new(vocab_size);
    if sequences.last_tokens[row] < 0 {
        return list;
    }
    if let Some(masks) = masks {
        list.is_too_complex = masks.is_too_complex(row);
        list.mask = masks.of(row).map(<[i32]>::to_vec);
    }
    if let Some(mut state) = sequences.states.get(sequences.slots[row] as usize) {
        list.add(&mut state, positions[row] as usize);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use chairlift_kernels::{
        Rows,
        sampling::{
            bans::{Bans, NoEnd},
            states::{DrawOptions, SequenceStates},
        },
    };

    fn states() -> SequenceStates {
        let mut states = SequenceStates::new(3);
        let options = DrawOptions {
            bans: Bans::new(Some(&[1, 33, 40]), vec![33, 99], vec![vec![7, 8]]),
            no_end: NoEnd {
                end_ids: vec![2],
                before: 3,
            },
            bias: vec![(5, 1.5)],
            penalties: Penalties {
                repetition: 2.0,
                ..Penalties::default()
            },
            num_candidates: 4,
            ..DrawOptions::default()
        };
        states.set(1, Some(SequenceState::new(options, vec![6, 6])));
        states
    }

    fn listed(
        states: &SequenceStates,
        slots: &[i32],
        positions: &[i32],
        last_tokens: &[i32],
    ) -> Lists {
        let sequences = DrawSequences {
            states,
            slots,
            last_tokens,
        };
        lists(sequences, positions, None, 41).expect("they fit")
    }

    #[test]
    fn a_row_that_asks_for_nothing_lists_nothing() {
        let all = listed(&states(), &[0, 2], &[4, 1], &[3, 3]);
        assert!(all.entries.is_empty() && all.masks.is_empty());
        assert_eq!((all.rows.len(), all.num_candidates), (32, 0));
        assert_eq!(all.rows[..8], [FREE, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn sections_follow_each_other_and_drafts_are_seen() {
        let all = listed(&states(), &[0, 1, 1], &[4, 2, 3], &[3, 6, 7]);
        // The second draw is behind the draft 7: 8 is banned, and the end is not.
        let bias = 1.5_f32.to_bits().cast_signed();
        let first = [33, 0, 2, 0, 5, bias, 6, 0];
        assert_eq!(all.entries[..8], first);
        assert_eq!(all.rows[16..24], [0, 0, 1, 2, 3, 4, 4, 4]);
        assert_eq!(all.rows[32..40], [1, 4, 6, 6, 7, 9, 9, 4]);
        assert_eq!(all.entries[8..14], [33, 0, 8, 0, 5, bias]);
        let mut counts = [
            [all.entries[14], all.entries[15]],
            [all.entries[16], all.entries[17]],
        ];
        counts.sort_unstable();
        assert_eq!(counts, [[6, 0], [7, 1]]);
        assert_eq!(all.masks, [2, 2 | 1 << 8, 2, 2 | 1 << 8]);
        assert_eq!(all.num_candidates, 4);
    }

    #[test]
    fn allowed_ids_and_a_constraint_allow_what_both_do() {
        let (states, bits) = (states(), [0b11, 1 << 8]);
        let sequences = DrawSequences {
            states: &states,
            slots: &[1, 0, 1],
            last_tokens: &[6, 0, -1],
        };
        let masks = MaskLines {
            bits: Rows::contiguous(&bits, 2),
            of_draw: &[0, 0, NOT_COMPUTED],
        };
        let all = lists(sequences, &[2, 9, 3], Some(masks), 41).expect("they fit");
        assert_eq!(all.masks, [0b10, 1 << 8, 0b11, 1 << 8]);
        assert_eq!([all.rows[0], all.rows[16]], [0, 1]);
        // It follows a draw that gave no token.
        assert_eq!(all.rows[32..40], [FREE, 4, 4, 4, 4, 4, 4, 0]);
    }

    #[test]
    fn what_a_later_draw_has_written_is_forgotten() {
        let states = states();
        listed(&states, &[1], &[2], &[6]);
        states.record(&[1, 1], &[2, 3], &[9, 7]);
        let again = listed(&states, &[1], &[3], &[9]);
        assert_eq!(again.rows[6] - again.rows[4], 2, "of 6 and 9 alone");
        states.record(&[1], &[4], &[5]);
        let sequences = DrawSequences {
            states: &states,
            slots: &[1],
            last_tokens: &[5],
        };
        assert!(
            lists(sequences, &[5], None, 41).is_err(),
            "3 is not written"
        );
    }
}
