//! The fake model: KV memory that is read and written through the block tables, as attention does.
//!
//! The plan goes through the same `apply_plan` as in the engine. One memory serves all KV groups, each marking what it
//! writes with its own mask, so that a block in the wrong group, request or block index changes what is read.

use std::{collections::HashSet, ops::Range};

use chairlift_core::{
    Config, KvGroup,
    plan::{COPY_STATE, LOAD_STATE, PlanView, SAVE_STATE},
    row_tables::{RowTables, StepShape, apply_plan},
};

use crate::{
    inputs::Inputs,
    oracle::{absorb, first_visible, sampled, with_adapter},
    random::mix,
    states::States,
};

/// What one row of a step computed.
#[derive(Clone, Debug)]
pub(crate) struct RowRun {
    pub(crate) row: usize,
    /// Slot and answer of the row, as the plans said.
    pub(crate) slot: usize,
    pub(crate) index: usize,
    adapter: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Guesses among its tokens: the last so many.
    pub(crate) num_drafts: usize,
    /// What the token before its drafts and each of these attended to, itself included; KV group after KV group, and the
    /// recurrent state.
    seen: Vec<u64>,
    /// The blocks where that lies, KV group after KV group, if steps are planned ahead.
    read: Vec<i32>,
    /// Where its inputs lie among those of the step.
    pub(crate) first_input: usize,
    /// Its part of what the step wrote.
    pub(crate) writes: Range<usize>,
    /// A token for each of its sample slots.
    pub(crate) sampled: Vec<i32>,
    /// The log probabilities of its prompt: of each its position, and its token.
    pub(crate) scored: Vec<(usize, i32)>,
}

impl RowRun {
    /// What the token before the drafts attended to in each KV group, or the token so many behind it, and the state.
    pub(crate) fn seen(&self, num_behind: usize) -> impl Iterator<Item = u64> + '_ {
        let lines = self.seen.chunks(1 + self.num_drafts);
        lines.map(move |line| line[num_behind])
    }

    /// What it wrote behind so many of its tokens, in all KV groups.
    pub(crate) fn writes_behind<'a>(
        &'a self,
        writes: &'a [Write],
        num_tokens: usize,
    ) -> impl Iterator<Item = Write> + 'a {
        let lines = writes[self.writes.clone()].chunks(self.end - self.start);
        lines.flat_map(move |line| line[num_tokens..].iter().copied())
    }
}

/// A KV slot and what a step wrote into it.
pub(crate) type Write = (usize, u64);

/// The runner's persistent tables, and KV memory.
pub(crate) struct Device {
    block_size: usize,
    groups: Vec<KvGroup>,
    vocab_size: usize,
    plans_ahead: bool,
    computed: Vec<i32>,
    last_token: Vec<i32>,
    row_slot: Vec<i32>,
    row_index: Vec<i32>,
    row_adapter: Vec<i32>,
    block_tables: Vec<i32>,
    kv: Vec<u64>,
    host: Vec<u64>,
    pub(crate) states: States,
    inputs: Inputs,
}

impl Device {
    pub(crate) fn new(config: &Config) -> Self {
        let (rows, groups) = (config.max_num_seqs, config.kv_groups.len());
        Self {
            block_size: config.block_size,
            groups: config.kv_groups.clone(),
            vocab_size: config.vocab_size,
            plans_ahead: config.steps_in_flight > 1,
            computed: vec![0; rows],
            last_token: vec![0; rows],
            row_slot: vec![0; rows],
            row_index: vec![0; rows],
            row_adapter: vec![0; rows],
            block_tables: vec![0; groups * rows * config.max_blocks_per_row()],
            kv: vec![0; config.num_blocks * config.block_size],
            host: vec![0; config.num_host_blocks * config.block_size],
            states: States::new(config),
            inputs: Inputs::new(config),
        }
    }

    /// What lies in a block.
    pub(crate) fn block(&self, block: u32) -> &[u64] {
        let start = block as usize * self.block_size;
        &self.kv[start..start + self.block_size]
    }

    /// What lies in a block, to be changed.
    pub(crate) fn block_mut(&mut self, block: u32) -> &mut [u64] {
        let start = block as usize * self.block_size;
        &mut self.kv[start..start + self.block_size]
    }

    /// Runs a plan, row after row. `root` gives the beginning of the chain of a request slot.
    pub(crate) fn run(
        &mut self,
        plan: &[i32],
        root: impl Fn(usize) -> u64,
        writes: &mut Vec<Write>,
    ) -> Result<Vec<RowRun>, String> {
        let shape = self.derive(plan)?;
        self.copy(plan)?;
        let view = PlanView::parse(plan).map_err(|error| error.0)?;
        let drafts = view.draft_counts;
        self.states.update(view.state_updates, LOAD_STATE)?;
        self.states.update(view.state_updates, COPY_STATE)?;
        let mut samples = 0;
        let mut runs = Vec::with_capacity(shape.num_rows);
        for i in 0..shape.num_rows {
            let row = self.inputs.rows[i] as usize;
            let (first, last) = (
                self.inputs.query_start_loc[i],
                self.inputs.query_start_loc[i + 1],
            );
            let slot = self.row_slot[row] as usize;
            let adapter = self.row_adapter[row] as u32;
            let root = with_adapter(root(slot), adapter);
            let end = self.inputs.seq_lens[i] as usize;
            let start = end - (last - first) as usize;
            let first_write = writes.len();
            let num_drafts = drafts[i] as usize;
            let mut seen = Vec::with_capacity(self.groups.len() * (1 + num_drafts));
            for group in 0..self.groups.len() {
                let views = self.attend(group, row, first as usize, start..end, root, writes)?;
                seen.extend_from_slice(&views[views.len() - 1 - num_drafts..]);
            }
            let ids = &self.inputs.input_ids[first as usize..last as usize];
            seen.extend(self.states.advance(row, ids, start, root));
            let mut read = Vec::new();
            if self.plans_ahead {
                for group in 0..self.groups.len() {
                    read.extend_from_slice(&self.table(group, row)[self.seen_blocks(group, end)]);
                }
            }
            let num_samples = self.num_samples(samples..shape.num_samples, first..last);
            samples += num_samples;
            let first_input = first as usize;
            let writes = first_write..writes.len();
            let mut run = RowRun {
                row,
                slot,
                index: self.row_index[row] as usize,
                adapter,
                start,
                end,
                num_drafts,
                seen,
                read,
                first_input,
                writes,
                sampled: Vec::with_capacity(num_samples),
                scored: self.inputs.scored(shape.num_scores, first..last, start),
            };
            if ![0, 1 + num_drafts].contains(&num_samples) || (num_samples == 0 && num_drafts > 0) {
                return Err(format!(
                    "{num_drafts} drafts have {num_samples} sample slots"
                ));
            }
            for i in 0..num_samples {
                let token = sampled(run.seen(i), run.index, self.vocab_size);
                run.sampled.push(token);
                self.last_token[row] = token;
            }
            runs.push(run);
        }
        if samples != shape.num_samples {
            return Err("a sample slot is not the last of its row's tokens or a draft".into());
        }
        self.states.update(view.state_updates, SAVE_STATE)?;
        Ok(runs)
    }

    /// How many of the sample slots are the last tokens of a row: from the first of them on, one after another.
    fn num_samples(&self, slots: Range<usize>, tokens: Range<i32>) -> usize {
        let slots = &self.inputs.sample_rows[slots];
        let mine = slots.iter().take_while(|slot| tokens.contains(slot));
        let count = mine.count();
        let expected = tokens.end - count as i32..tokens.end;
        let are_last = slots[..count].iter().copied().eq(expected);
        if are_last { count } else { 0 }
    }

    /// Copies whole blocks: to the host, from it, then inside.
    fn copy(&mut self, plan: &[i32]) -> Result<(), String> {
        let view = PlanView::parse(plan).map_err(|error| error.0)?;
        let size = self.block_size;
        copy_blocks(size, view.swap_out, &self.kv, &mut self.host)?;
        copy_blocks(size, view.swap_in, &self.host, &mut self.kv)?;
        let before = if view.copies.is_empty() {
            Vec::new()
        } else {
            self.kv.clone()
        };
        copy_blocks(size, view.copies, &before, &mut self.kv)
    }

    /// A step has failed: what it copied to the host is anything, and what is there already is not trusted.
    pub(crate) fn scribble_host(&mut self) {
        self.host
            .iter_mut()
            .for_each(|value| *value = mix(*value ^ 0xBAD));
    }

    /// The inputs of the last step.
    pub(crate) fn input_ids(&self, run: &RowRun) -> &[i32] {
        &self.inputs.input_ids[run.first_input..run.first_input + run.end - run.start]
    }

    /// The drafts of a row in the last step.
    pub(crate) fn drafts(&self, run: &RowRun) -> &[i32] {
        let inputs = self.input_ids(run);
        &inputs[inputs.len() - run.num_drafts..]
    }

    /// The first KV slot that no longer holds what a step wrote.
    pub(crate) fn changed(&self, writes: &[Write]) -> Option<usize> {
        let mut changed = writes
            .iter()
            .filter(|&&(slot, value)| self.kv[slot] != value);
        changed.next().map(|&(slot, _)| slot)
    }

    /// What a failed step wrote is anything, and what was written for a wrong draft.
    pub(crate) fn scribble(&mut self, writes: impl IntoIterator<Item = Write>) {
        for (slot, value) in writes {
            self.kv[slot] = mix(value ^ 0xBAD);
        }
    }

    fn derive(&mut self, plan: &[i32]) -> Result<StepShape, String> {
        let inputs = &mut self.inputs;
        let mut tables = RowTables {
            computed: &mut self.computed,
            last_token: &self.last_token,
            row_slot: &mut self.row_slot,
            row_index: &mut self.row_index,
            row_adapter: &mut self.row_adapter,
            block_tables: &mut self.block_tables,
            num_kv_groups: self.groups.len(),
        };
        let mut inputs = inputs.view();
        apply_plan(plan, self.block_size, &mut tables, &mut inputs).map_err(|error| error.0)
    }

    /// Reads what the first of `positions` sees of those before it through the block table, then writes these one by one,
    /// each reading what comes into sight, and again what goes out of it. Gives what each saw.
    fn attend(
        &mut self,
        group: usize,
        row: usize,
        first_input: usize,
        positions: Range<usize>,
        root: u64,
        writes: &mut Vec<Write>,
    ) -> Result<Vec<u64>, String> {
        let mask = mix(group as u64);
        let mut first = first_visible(self.groups[group], positions.start);
        let behind = &self.table(group, row)[..first / self.block_size];
        if !self.plans_ahead && behind.iter().any(|&block| block != 0) {
            return Err(format!(
                "row {row} of KV group {group} has blocks behind its window at {}",
                positions.start
            ));
        }
        let blocks = &self.table(group, row)[first / self.block_size..];
        let mut seen = root.wrapping_add(self.sum(blocks, first..positions.start, mask));
        let num_blocks = positions.end.div_ceil(self.block_size) - first / self.block_size;
        if blocks[..num_blocks].contains(&0) {
            return Err(format!(
                "row {row} of KV group {group} needs the null block in {first}..{}",
                positions.end
            ));
        }
        let mapping = group * (self.inputs.slot_mapping.len() / self.groups.len()) + first_input;
        let mut views = Vec::with_capacity(positions.len());
        for (i, position) in positions.enumerate() {
            while first < first_visible(self.groups[group], position) {
                let value = self.kv[self.slot(group, row, first)];
                seen = seen.wrapping_sub(value ^ mask);
                first += 1;
            }
            let value = absorb(seen, self.inputs.input_ids[first_input + i], position) ^ mask;
            let slot = self.inputs.slot_mapping[mapping + i] as usize;
            self.kv[slot] = value;
            writes.push((slot, value));
            let read = self.kv[self.slot(group, row, position)];
            seen = seen.wrapping_add(read ^ mask);
            views.push(seen);
        }
        Ok(views)
    }

    /// The block table of a row.
    fn table(&self, group: usize, row: usize) -> &[i32] {
        let rows = self.computed.len();
        let num_indices = self.block_tables.len() / (self.groups.len() * rows);
        &self.block_tables[(group * rows + row) * num_indices..][..num_indices]
    }

    /// Where a position of a row lies.
    fn slot(&self, group: usize, row: usize, position: usize) -> usize {
        let block = self.table(group, row)[position / self.block_size] as usize;
        block * self.block_size + position % self.block_size
    }

    /// The blocks of what the last token before `end` attends to.
    fn seen_blocks(&self, group: usize, end: usize) -> Range<usize> {
        let first = first_visible(self.groups[group], end - 1);
        first / self.block_size..end.div_ceil(self.block_size)
    }

    /// What lies at `positions`, summed up; the first of them lies in the first of the blocks.
    fn sum(&self, blocks: &[i32], positions: Range<usize>, mask: u64) -> u64 {
        let (mut sum, mut left) = (0_u64, positions.len());
        let mut offset = positions.start % self.block_size;
        for &block in blocks {
            let count = left.min(self.block_size - offset);
            let at = block as usize * self.block_size + offset;
            let values = self.kv[at..at + count].iter();
            sum = values.fold(sum, |sum, value| sum.wrapping_add(value ^ mask));
            (left, offset) = (left - count, 0);
            if left == 0 {
                break;
            }
        }
        sum
    }

    /// Whether what a row of a step in flight read is still there.
    pub(crate) fn still_sees(&self, run: &RowRun, root: u64) -> bool {
        let root = with_adapter(root, run.adapter);
        let mut blocks = &run.read[..];
        if blocks.is_empty() {
            return true;
        }
        let seen = run.seen(run.num_drafts).take(self.groups.len());
        seen.enumerate().all(|(group, seen)| {
            let (mine, rest) = blocks.split_at(self.seen_blocks(group, run.end).len());
            blocks = rest;
            let first = first_visible(self.groups[group], run.end - 1);
            let sum = self.sum(mine, first..run.end, mix(group as u64));
            root.wrapping_add(sum) == seen
        })
    }
}

/// Copies blocks from one memory to another, each to a place of its own.
fn copy_blocks(
    size: usize,
    pairs: &[[i32; 2]],
    from: &[u64],
    to: &mut [u64],
) -> Result<(), String> {
    let mut targets = HashSet::new();
    for &[source, target] in pairs {
        if !targets.insert(target) {
            return Err(format!("two blocks are copied to block {target}"));
        }
        let block = |block: i32| block as usize * size..(block as usize + 1) * size;
        to[block(target)].copy_from_slice(&from[block(source)]);
    }
    Ok(())
}
