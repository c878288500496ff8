//! The plan of a step: one flat `i32` buffer that says *what* to compute; the runner derives *where*.
//!
//! ```text
//! header[16]   lengths: R rows, T tokens, S sample slots, score ranges, assigned, block updates, copies, swaps in,
//!              swaps out, state updates; the rest is 0
//! rows[R]  num_tokens[R]  input_ids[T]  draft_counts[R]  sample_rows[S]  score_ranges[., 3]
//! assigned[., 5]  block_updates[., 4]  copies[., 2]  swap_in[., 2]  swap_out[., 2]  state_updates[., 3]
//! ```
//!
//! A row with `draft_counts` k ends with k drafts, guesses that the step checks: it has 1 + k tokens, its last and the
//! drafts, and 1 + k sample slots in a row, one after each. Other rows have one sample slot, or none. `assigned` says
//! of which answer a row is from now on and how many tokens of it are computed: for a sequence that is admitted, and
//! again after drafts, of which some may have been wrong, and after a step that failed.
//!
//! `score_ranges` are tokens of prompts behind which the next token, which is known, gets a log probability: the first of
//! them as an index into T, their number, and the token behind the last; of the others the next is in `input_ids`.
//!
//! Blocks are copied before anything is written: all of `swap_out` (device block, host block), then all of `swap_in` (host
//! block, device block), then `copies`. One direction at a time no block is both read and written, or written twice.
//!
//! `state_updates` are of recurrent states: row, what is done, and with which snapshot or row. All of [`LOAD_STATE`], then
//! all of [`COPY_STATE`] (another row's state) is done before the step, [`SAVE_STATE`] after it. A row at position 0 begins
//! with zeros.
//!
//! A plan is a value: it can be double-buffered, broadcast, logged and replayed. It repeats nothing that the runner
//! already has: rows are persistent, and block tables change only by `block_updates`.

use thiserror::Error;

use crate::{
    config::Config,
    ids::{BlockId, Row, Slot, Snapshot},
};

/// Input id of a token that only the runner knows for certain: the row's last sampled token.
pub const LAST_SAMPLED: i32 = -1;

/// A state update: the row gets the state of a snapshot.
pub const LOAD_STATE: i32 = 1;
/// A state update: the row gets the state of another row.
pub const COPY_STATE: i32 = 2;
/// The snapshot gets the state of the row.
pub const SAVE_STATE: i32 = 3;

/// Integers of the header.
pub const HEADER: usize = 16;

/// Where the entries of a section lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: &'static str,
    /// Integers of an entry.
    pub width: usize,
    /// Index of the header that has the number of entries.
    pub length: usize,
}

/// Makes, of the one list of sections, the plan under construction, the plan as it is read, and the layout of both.
macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident: $entry:ty, counted by header[$length:literal];)+) => {
        /// A plan under construction.
        #[derive(Clone, Debug, Default)]
        pub struct Plan {
            $($name: Vec<$entry>,)+
        }

        /// A plan as the runner reads it.
        #[derive(Clone, Copy, Debug)]
        pub struct PlanView<'a> {
            $($(#[$doc])* pub $name: &'a [$entry],)+
        }

        /// The sections in the order in which they follow the header.
        pub const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($name),
            width: width_of::<$entry>(),
            length: $length,
        },)+];

        impl Plan {
            pub(crate) fn clear(&mut self) {
                $(self.$name.clear();)+
            }

            /// Writes the plan to the front of `out` and returns its length.
            ///
            /// # Panics
            /// If `out` is shorter than [`Plan::capacity`] says and the plan needs it.
            pub fn encode(&self, out: &mut [i32]) -> usize {
                out[..HEADER].fill(0);
                let mut end = HEADER;
                $(
                    out[$length] = self.$name.len() as i32;
                    let (start, section) = (end, bytemuck::cast_slice(&self.$name));
                    end += section.len();
                    out[start..end].copy_from_slice(section);
                )+
                end
            }
        }

        impl<'a> PlanView<'a> {
            /// Cuts a buffer into its sections.
            ///
            /// # Errors
            /// If the lengths of the header do not fit the buffer.
            pub fn parse(buffer: &'a [i32]) -> Result<Self, PlanError> {
                let wrong = || PlanError("plan: the header does not fit the buffer".into());
                let (header, mut rest) = buffer.split_at_checked(HEADER).ok_or_else(wrong)?;
                let mut take = |length: usize, width: usize| {
                    let count = usize::try_from(header[length]).map_err(|_| wrong())?;
                    let section;
                    (section, rest) = rest.split_at_checked(count * width).ok_or_else(wrong)?;
                    Ok(section)
                };
                Ok(Self {
                    $($name: bytemuck::cast_slice(take($length, width_of::<$entry>())?),)+
                })
            }
        }
    };
}

const fn width_of<Entry>() -> usize {
    size_of::<Entry>() / size_of::<i32>()
}

sections! {
    rows: i32, counted by header[0];
    num_tokens: i32, counted by header[0];
    input_ids: i32, counted by header[1];
    draft_counts: i32, counted by header[0];
    sample_rows: i32, counted by header[2];
    /// First token, number, the token behind the last.
    score_ranges: [i32; 3], counted by header[3];
    /// Row, request slot, index, start, adapter slot.
    assigned: [i32; 5], counted by header[4];
    /// KV group, row, block index, block.
    block_updates: [i32; 4], counted by header[5];
    /// Source and target, blocks. All sources are read before a target is written.
    copies: [i32; 2], counted by header[6];
    /// Host block, block.
    swap_in: [i32; 2], counted by header[7];
    /// Block, host block.
    swap_out: [i32; 2], counted by header[8];
    /// Row, what is done, snapshot or row.
    state_updates: [i32; 3], counted by header[9];
}

/// A buffer is not a plan, or does not fit the tables it is applied to.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct PlanError(pub String);

impl Plan {
    /// Integers that the largest plan of a configuration takes.
    pub fn capacity(config: &Config) -> usize {
        let rows = config.max_num_seqs;
        let block_updates = rows * config.max_blocks_per_row() * config.kv_groups.len();
        let copies = rows * config.kv_groups.len();
        // A sequence that resumes is in a plan before it can be preempted again.
        let swaps = config.num_host_blocks.min(block_updates);
        HEADER
            // `rows`, `num_tokens`, `draft_counts`, `score_ranges` and `assigned`.
            + rows * (1 + 1 + 1 + 3 + 5)
            + 2 * config.max_num_batched_tokens
            + 4 * block_updates
            + 2 * copies
            + 4 * swaps
            // Loaded or copied, and saved.
            + config.state_snapshots.map_or(0, |_| 2 * 3 * rows)
    }

    pub(crate) fn schedule(&mut self, row: Row, tokens: &[i32]) {
        self.rows.push(row as i32);
        self.num_tokens.push(tokens.len() as i32);
        match *tokens {
            // Nearly always: a decode needs no loop.
            [token] => self.input_ids.push(token),
            _ => self.input_ids.extend_from_slice(tokens),
        }
        self.draft_counts.push(0);
    }

    /// The last token of the row that was scheduled last is sampled after.
    pub(crate) fn sample(&mut self) {
        self.sample_rows.push(self.input_ids.len() as i32 - 1);
    }

    /// Scores tokens of the row that was scheduled last: `count` tokens from its token `first` on give the next token a log
    /// probability, and `next` is the token behind the last.
    pub(crate) fn score(&mut self, first: usize, count: usize, next: i32) {
        let num_tokens = *self.num_tokens.last().expect("a row was scheduled") as usize;
        let start = self.input_ids.len() - num_tokens;
        let range = [(start + first) as i32, count as i32, next];
        self.score_ranges.push(range);
    }

    /// Puts drafts behind the last token of each row that samples, `drafts(i)` behind that of the i-th, and a sample behind
    /// each; none where the row does not sample.
    pub(crate) fn insert_drafts<'a>(&mut self, drafts: impl Fn(usize) -> &'a [i32]) {
        let input_ids = std::mem::take(&mut self.input_ids);
        let sample_rows = std::mem::take(&mut self.sample_rows);
        let (mut rest, mut samples) = (input_ids.as_slice(), sample_rows.iter().peekable());
        let mut ranges = self.score_ranges.iter_mut().peekable();
        for row in 0..self.rows.len() {
            let (tokens, behind) = rest.split_at(self.num_tokens[row] as usize);
            rest = behind;
            self.input_ids.extend_from_slice(tokens);
            let last = (input_ids.len() - rest.len()) as i32 - 1;
            let moved = self.input_ids.len() as i32 - 1 - last;
            if let Some(range) = ranges.next_if(|range| range[0] <= last) {
                range[0] += moved;
            }
            if samples.next_if_eq(&&last).is_none() {
                continue;
            }
            self.sample_rows.push(self.input_ids.len() as i32 - 1);
            let drafts = drafts(row);
            for &draft in drafts {
                self.input_ids.push(draft);
                self.sample_rows.push(self.input_ids.len() as i32 - 1);
            }
            self.num_tokens[row] += drafts.len() as i32;
            self.draft_counts[row] = drafts.len() as i32;
        }
    }

    pub(crate) fn assign(&mut self, row: Row, slot: Slot, index: u32, start: usize, adapter: u32) {
        let entry = [row, slot, index, start as u32, adapter].map(|number| number as i32);
        self.assigned.push(entry);
    }

    pub(crate) fn set_block(&mut self, group: usize, row: Row, block_index: usize, block: BlockId) {
        let entry = [group as i32, row as i32, block_index as i32, block as i32];
        self.block_updates.push(entry);
    }

    /// Before the step writes anything `target` becomes what `source` is, in all layers.
    pub(crate) fn copy(&mut self, source: BlockId, target: BlockId) {
        self.copies.push([source as i32, target as i32]);
    }

    /// Before the step writes anything, and before blocks come in, the host's block `target` becomes what `source` is.
    pub(crate) fn swap_out(&mut self, source: BlockId, target: u32) {
        self.swap_out.push([source as i32, target as i32]);
    }

    /// Before the step writes anything `target` becomes what the host's block `source` is.
    pub(crate) fn swap_in(&mut self, source: u32, target: BlockId) {
        self.swap_in.push([source as i32, target as i32]);
    }

    /// Before the step the row gets the state of a snapshot.
    pub(crate) fn load_state(&mut self, row: Row, snapshot: Snapshot) {
        let entry = [row as i32, LOAD_STATE, snapshot as i32];
        self.state_updates.push(entry);
    }

    /// Before the step, and after all are loaded, the row gets the state of another.
    pub(crate) fn copy_state(&mut self, row: Row, from: Row) {
        let entry = [row as i32, COPY_STATE, from as i32];
        self.state_updates.push(entry);
    }

    /// After the step the snapshot gets the state of the row.
    pub(crate) fn save_state(&mut self, row: Row, snapshot: Snapshot) {
        let entry = [row as i32, SAVE_STATE, snapshot as i32];
        self.state_updates.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back_as_it_was_written() {
        let mut plan = Plan::default();
        plan.assign(3, 9, 2, 32, 4);
        plan.copy(5, 6);
        plan.swap_in(1, 7);
        plan.swap_out(8, 2);
        plan.load_state(3, 4);
        plan.copy_state(1, 3);
        plan.save_state(1, 5);
        plan.set_block(0, 3, 2, 77);
        plan.schedule(3, &[5, 6, 7]);
        plan.score(1, 2, 8);
        plan.schedule(1, &[LAST_SAMPLED]);
        plan.sample();
        let mut buffer = vec![99; 64];
        let length = plan.encode(&mut buffer);
        let view = PlanView::parse(&buffer[..length]).expect("a plan");
        assert_eq!((view.rows, view.num_tokens), (&[3, 1][..], &[3, 1][..]));
        assert_eq!(view.input_ids, [5, 6, 7, LAST_SAMPLED]);
        assert_eq!(
            (view.draft_counts, view.sample_rows),
            (&[0, 0][..], &[3][..])
        );
        assert_eq!(view.score_ranges, [[1, 2, 8]]);
        assert_eq!(view.assigned, [[3, 9, 2, 32, 4]]);
        assert_eq!(view.copies, [[5, 6]]);
        assert_eq!(
            (view.swap_in, view.swap_out),
            (&[[1, 7]][..], &[[8, 2]][..])
        );
        assert_eq!(view.block_updates, [[0, 3, 2, 77]]);
        let updates = [[3, LOAD_STATE, 4], [1, COPY_STATE, 3], [1, SAVE_STATE, 5]];
        assert_eq!(view.state_updates, updates);
    }

    #[test]
    fn ranges_move_with_their_tokens_where_drafts_come_before_them() {
        let mut plan = Plan::default();
        plan.schedule(0, &[LAST_SAMPLED]);
        plan.sample();
        plan.schedule(1, &[5, 6, 7]);
        plan.score(0, 3, 8);
        plan.insert_drafts(|row| if row == 0 { &[1, 2] } else { &[] });
        let mut buffer = vec![0; 64];
        let length = plan.encode(&mut buffer);
        let view = PlanView::parse(&buffer[..length]).expect("a plan");
        assert_eq!(view.input_ids, [LAST_SAMPLED, 1, 2, 5, 6, 7]);
        assert_eq!(view.sample_rows, [0, 1, 2]);
        assert_eq!(view.score_ranges, [[3, 3, 8]]);
    }

    #[test]
    fn a_short_or_negative_buffer_is_refused() {
        assert!(PlanView::parse(&[0; 15]).is_err());
        let mut header = [0; 16];
        header[1] = 5;
        assert!(PlanView::parse(&header).is_err());
        header[1] = -1;
        assert!(PlanView::parse(&header).is_err());
    }
}
