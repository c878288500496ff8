//! The runner's side of a plan: apply its differences to the persistent row tables and derive where everything is.
//!
//! ```text
//! row r of the step, n tokens scheduled, c tokens computed before:
//!
//!   position      c        c+1      ...      c+n-1
//!   KV slot       block_tables[group][row][position / block_size] * block_size + position % block_size
//!   query_start_loc[r] .. query_start_loc[r + 1]      seq_lens[r] = c + n
//! ```

use crate::plan::{LAST_SAMPLED, PlanError, PlanView};

/// Persistent state of the rows. Nothing but plans (and the sampler, for `last_token`) changes it.
#[derive(Debug)]
pub struct RowTables<'a> {
    /// `[max_num_seqs]`: tokens whose keys and values are written.
    pub computed: &'a mut [i32],
    /// `[max_num_seqs]`: last sampled token.
    pub last_token: &'a [i32],
    /// `[max_num_seqs]`: request slot.
    pub row_slot: &'a mut [i32],
    /// `[max_num_seqs]`: which of the request's answers.
    pub row_index: &'a mut [i32],
    /// `[max_num_seqs]`: slot of the request's adapter; 0 is none.
    pub row_adapter: &'a mut [i32],
    /// `[num_kv_groups][max_num_seqs][max_blocks_per_row]`.
    pub block_tables: &'a mut [i32],
    pub num_kv_groups: usize,
}

/// Inputs of the forward pass, derived; each at least as long as the step needs.
#[derive(Debug)]
pub struct StepInputs<'a> {
    pub rows: &'a mut [i32],
    pub input_ids: &'a mut [i32],
    pub positions: &'a mut [i32],
    /// `[num_kv_groups][stride]`, of which the first T of each line are written.
    pub slot_mapping: &'a mut [i32],
    pub query_start_loc: &'a mut [i32],
    pub seq_lens: &'a mut [i32],
    pub sample_rows: &'a mut [i32],
    /// Tokens of prompts behind which the next token gets a log probability, as indices into T, and these next tokens.
    pub score_rows: &'a mut [i32],
    pub score_targets: &'a mut [i32],
    /// The adapter slot of each token.
    pub adapters: &'a mut [i32],
}

/// R rows, T tokens, S sample slots, the log probabilities of prompts, and the rows that have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    pub num_rows: usize,
    pub num_tokens: usize,
    pub num_samples: usize,
    pub num_scores: usize,
    pub num_adapted: usize,
}

/// Applies `plan` to the tables and fills the inputs.
///
/// # Errors
/// If the plan names a row, block index or token outside the tables or inputs, or these do not fit each other; then the
/// tables are as before.
pub fn apply_plan(
    plan: &[i32],
    block_size: usize,
    tables: &mut RowTables<'_>,
    inputs: &mut StepInputs<'_>,
) -> Result<StepShape, PlanError> {
    let view = PlanView::parse(plan)?;
    let mut shape = StepShape {
        num_rows: view.rows.len(),
        num_tokens: view.input_ids.len(),
        num_samples: view.sample_rows.len(),
        num_scores: 0,
        num_adapted: 0,
    };
    if !(1..=i32::MAX as usize).contains(&block_size) {
        let max = i32::MAX;
        return Err(PlanError(format!(
            "block_size: expected 1 to {max}, got {block_size}"
        )));
    }
    tables.check()?;
    check_shape(shape, tables, inputs)?;
    shape.num_scores = score(&view, inputs)?;
    inputs.rows[..shape.num_rows].copy_from_slice(view.rows);
    inputs.sample_rows[..shape.num_samples].copy_from_slice(view.sample_rows);
    let mut undo = Undo::default();
    let derived = tables
        .apply(&view, &mut undo)
        .and_then(|()| derive(&view, block_size, tables, inputs, &mut undo));
    match derived {
        Ok(num_adapted) => shape.num_adapted = num_adapted,
        Err(error) => {
            undo.run(tables);
            return Err(error);
        }
    }
    Ok(shape)
}

/// What a plan has replaced in the tables so far.
#[derive(Default)]
struct Undo {
    /// Row, and its entries of the tables of rows.
    rows: Vec<(usize, [i32; 4])>,
    /// Index into the block tables, and what was there.
    blocks: Vec<(usize, i32)>,
    /// Rows that moved on, each with where it was.
    computed: Vec<(usize, i32)>,
}

impl Undo {
    /// Puts everything back, the last change first.
    fn run(self, tables: &mut RowTables<'_>) {
        for (row, before) in self.computed.into_iter().rev() {
            tables.computed[row] = before;
        }
        for (at, before) in self.blocks.into_iter().rev() {
            tables.block_tables[at] = before;
        }
        for (row, before) in self.rows.into_iter().rev() {
            [
                tables.computed[row],
                tables.row_slot[row],
                tables.row_index[row],
                tables.row_adapter[row],
            ] = before;
        }
    }
}

fn check_shape(
    shape: StepShape,
    tables: &RowTables<'_>,
    inputs: &StepInputs<'_>,
) -> Result<(), PlanError> {
    let StepShape {
        num_rows,
        num_tokens,
        num_samples,
        num_scores: _,
        num_adapted: _,
    } = shape;
    let slots = inputs.slot_mapping.len() / tables.num_kv_groups;
    for (name, length, min) in [
        ("rows", inputs.rows.len(), num_rows),
        ("seq_lens", inputs.seq_lens.len(), num_rows),
        (
            "query_start_loc",
            inputs.query_start_loc.len(),
            num_rows + 1,
        ),
        ("input_ids", inputs.input_ids.len(), num_tokens),
        ("positions", inputs.positions.len(), num_tokens),
        ("slot_mapping", slots, num_tokens),
        ("sample_rows", inputs.sample_rows.len(), num_samples),
        ("adapters", inputs.adapters.len(), num_tokens),
    ] {
        if length < min {
            return Err(PlanError(format!(
                "{name}: expected at least {min} entries, got {length}"
            )));
        }
    }
    Ok(())
}

impl RowTables<'_> {
    /// Checks the tables against each other.
    fn check(&self) -> Result<(), PlanError> {
        if self.num_kv_groups == 0 {
            return Err(PlanError(
                "num_kv_groups: expected at least 1, got 0".into(),
            ));
        }
        let num_rows = self.computed.len();
        for (name, length) in [
            ("last_token", self.last_token.len()),
            ("row_slot", self.row_slot.len()),
            ("row_index", self.row_index.len()),
            ("row_adapter", self.row_adapter.len()),
        ] {
            if length != num_rows {
                return Err(PlanError(format!(
                    "{name}: expected {num_rows} entries as computed, got {length}"
                )));
            }
        }
        Ok(())
    }

    /// Blocks that a row has room for; none where there is no row.
    fn num_indices(&self) -> usize {
        let lines = self.num_kv_groups * self.computed.len();
        self.block_tables.len().checked_div(lines).unwrap_or(0)
    }

    fn apply(&mut self, view: &PlanView<'_>, undo: &mut Undo) -> Result<(), PlanError> {
        let num_rows = self.computed.len();
        for &[row, slot, index, start, adapter] in view.assigned {
            let row = below("assigned row", row, num_rows)?;
            let before = [
                self.computed[row],
                self.row_slot[row],
                self.row_index[row],
                self.row_adapter[row],
            ];
            undo.rows.push((row, before));
            self.computed[row] = start;
            self.row_slot[row] = slot;
            self.row_index[row] = index;
            self.row_adapter[row] = adapter;
        }
        let num_indices = self.num_indices();
        for &[group, row, block_index, block] in view.block_updates {
            let group = below("KV group", group, self.num_kv_groups)?;
            let row = below("block row", row, num_rows)?;
            let block_index = below("block index", block_index, num_indices)?;
            let at = (group * num_rows + row) * num_indices + block_index;
            undo.blocks.push((at, self.block_tables[at]));
            self.block_tables[at] = block;
        }
        Ok(())
    }
}

/// Lists the tokens that give a log probability, and those that get it; gives how many.
fn score(view: &PlanView<'_>, inputs: &mut StepInputs<'_>) -> Result<usize, PlanError> {
    let mut at = 0;
    let room = inputs.score_rows.len().min(inputs.score_targets.len());
    for &[first, count, next] in view.score_ranges {
        let num_tokens = view.input_ids.len();
        let first = below("scored token", first, num_tokens)?;
        let count = below("scored tokens", count, num_tokens - first + 1)?;
        if count > room - at {
            let needed = at + count;
            return Err(PlanError(format!(
                "score_rows: expected at least {needed} entries, got {room}"
            )));
        }
        for token in first..first + count {
            inputs.score_rows[at] = token as i32;
            let is_last = token + 1 == first + count;
            let target = if is_last {
                next
            } else {
                view.input_ids[token + 1]
            };
            inputs.score_targets[at] = target;
            at += 1;
        }
    }
    Ok(at)
}

/// Fills the inputs; gives how many rows have an adapter.
fn derive(
    view: &PlanView<'_>,
    block_size: usize,
    tables: &mut RowTables<'_>,
    inputs: &mut StepInputs<'_>,
    undo: &mut Undo,
) -> Result<usize, PlanError> {
    let num_rows = tables.computed.len();
    undo.computed.reserve_exact(view.rows.len());
    let num_indices = tables.num_indices();
    let past_longest = num_indices.saturating_mul(block_size).saturating_add(1);
    let stride = inputs.slot_mapping.len() / tables.num_kv_groups;
    let (mut at, mut num_adapted) = (0, 0);
    inputs.query_start_loc[0] = 0;
    for (i, (&row, &count)) in view.rows.iter().zip(view.num_tokens).enumerate() {
        let row = below("row", row, num_rows)?;
        let count = below("num_tokens", count, view.input_ids.len() - at + 1)?;
        let start = below("computed tokens", tables.computed[row], past_longest)?;
        let end = below("row length", (start + count) as i32, past_longest)?;
        for (token, position) in (at..).zip(start..end) {
            let id = view.input_ids[token];
            inputs.input_ids[token] = if id == LAST_SAMPLED {
                tables.last_token[row]
            } else {
                id
            };
            inputs.positions[token] = position as i32;
            for group in 0..tables.num_kv_groups {
                let line = (group * num_rows + row) * num_indices;
                let block = tables.block_tables[line + position / block_size];
                inputs.slot_mapping[group * stride + token] = slot(block, block_size, position)?;
            }
        }
        let adapter = tables.row_adapter[row];
        inputs.adapters[at..at + count].fill(adapter);
        num_adapted += usize::from(adapter != 0);
        at += count;
        undo.computed.push((row, tables.computed[row]));
        tables.computed[row] = end as i32;
        inputs.query_start_loc[i + 1] = at as i32;
        inputs.seq_lens[i] = end as i32;
    }
    Ok(num_adapted)
}

/// The slot of a token in its block.
fn slot(block: i32, block_size: usize, position: usize) -> Result<i32, PlanError> {
    let slot = i64::from(block) * block_size as i64 + (position % block_size) as i64;
    let error = |_| {
        PlanError(format!(
            "block_tables: block {block} is not below {}",
            i32::MAX as usize / block_size
        ))
    };
    i32::try_from(slot).map_err(error)
}

fn below(name: &str, value: i32, limit: usize) -> Result<usize, PlanError> {
    usize::try_from(value)
        .ok()
        .filter(|&value| value < limit)
        .ok_or_else(|| PlanError(format!("plan: {name} {value} is not below {limit}")))
}

#[cfg(test)]
mod tests;
