//! The inputs of a step, as large as any step needs.

use std::ops::Range;

use chairlift_core::{Config, row_tables::StepInputs};

pub(crate) struct Inputs {
    pub(crate) rows: Vec<i32>,
    pub(crate) input_ids: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    pub(crate) slot_mapping: Vec<i32>,
    pub(crate) query_start_loc: Vec<i32>,
    pub(crate) seq_lens: Vec<i32>,
    pub(crate) sample_rows: Vec<i32>,
    score_rows: Vec<i32>,
    score_targets: Vec<i32>,
    pub(crate) adapters: Vec<i32>,
}

impl Inputs {
    pub(crate) fn new(config: &Config) -> Self {
        let (rows, tokens) = (config.max_num_seqs, config.max_num_batched_tokens);
        Self {
            rows: vec![0; rows],
            input_ids: vec![0; tokens],
            positions: vec![0; tokens],
            slot_mapping: vec![0; config.kv_groups.len() * tokens],
            query_start_loc: vec![0; rows + 1],
            seq_lens: vec![0; rows],
            sample_rows: vec![0; tokens],
            score_rows: vec![0; tokens],
            score_targets: vec![0; tokens],
            adapters: vec![0; tokens],
        }
    }

    pub(crate) fn view(&mut self) -> StepInputs<'_> {
        StepInputs {
            rows: &mut self.rows,
            input_ids: &mut self.input_ids,
            positions: &mut self.positions,
            slot_mapping: &mut self.slot_mapping,
            query_start_loc: &mut self.query_start_loc,
            seq_lens: &mut self.seq_lens,
            sample_rows: &mut self.sample_rows,
            score_rows: &mut self.score_rows,
            score_targets: &mut self.score_targets,
            adapters: &mut self.adapters,
        }
    }

    /// The positions and tokens of a row, whose first token is at `start`, that get a log probability.
    pub(crate) fn scored(
        &self,
        num_scores: usize,
        tokens: Range<i32>,
        start: usize,
    ) -> Vec<(usize, i32)> {
        let mine = self.score_rows[..num_scores]
            .iter()
            .zip(&self.score_targets);
        let mine = mine.filter(|(token, _)| tokens.contains(token));
        let position = |&token: &i32| start + (token - tokens.start) as usize + 1;
        mine.map(|(token, &target)| (position(token), target))
            .collect()
    }
}
