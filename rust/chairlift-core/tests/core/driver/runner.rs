//! The fake model: tables and KV memory that are changed and read as the engine's runner does.

use chairlift_core::{
    Config,
    plan::PlanView,
    row_tables::{RowTables, StepInputs, apply_plan},
};

use super::{mix, token_of};

/// The runner's tables and a KV memory of hashes, one per slot.
pub(super) struct FakeRunner {
    block_size: usize,
    num_groups: usize,
    computed: Vec<i32>,
    last_token: Vec<i32>,
    block_tables: Vec<i32>,
    kv: Vec<u64>,
    host: Vec<u64>,
}

impl FakeRunner {
    pub(super) fn new(config: &Config) -> Self {
        let (rows, groups) = (config.max_num_seqs, config.kv_groups.len());
        Self {
            block_size: config.block_size,
            num_groups: groups,
            computed: vec![0; rows],
            last_token: vec![0; rows],
            block_tables: vec![0; groups * rows * config.max_blocks_per_row()],
            kv: vec![0; config.num_blocks * config.block_size],
            host: vec![0; config.num_host_blocks * config.block_size],
        }
    }

    /// Runs a plan and gives the sampled token of each sample slot.
    pub(super) fn run(&mut self, plan: &[i32]) -> Vec<i32> {
        let view = PlanView::parse(plan).expect("a plan");
        let (r, t, s) = (
            view.rows.len(),
            view.input_ids.len(),
            view.sample_rows.len(),
        );
        let mut out: Vec<Vec<i32>> = [r, t, t, t * self.num_groups, r + 1, r, s, t, t, t]
            .iter()
            .map(|&n| vec![0; n])
            .collect();
        let [
            rows,
            input_ids,
            positions,
            slot_mapping,
            query_start_loc,
            seq_lens,
            sample_rows,
            score_rows,
            score_targets,
            adapters,
        ] = &mut out[..]
        else {
            unreachable!("ten outputs")
        };
        let num_rows = self.computed.len();
        let mut ignored = [(); 3].map(|()| vec![0; num_rows]);
        let [row_slot, row_index, row_adapter] = &mut ignored;
        let mut tables = RowTables {
            computed: &mut self.computed,
            last_token: &self.last_token,
            row_slot,
            row_index,
            row_adapter,
            block_tables: &mut self.block_tables,
            num_kv_groups: self.num_groups,
        };
        let mut inputs = StepInputs {
            rows,
            input_ids,
            positions,
            slot_mapping,
            query_start_loc,
            seq_lens,
            sample_rows,
            score_rows,
            score_targets,
            adapters,
        };
        apply_plan(plan, self.block_size, &mut tables, &mut inputs).expect("the plan applies");
        let (kv, host) = (&mut self.kv, &mut self.host);
        copy_blocks(self.block_size, view.swap_out, kv, host);
        copy_blocks(self.block_size, view.swap_in, host, kv);
        let mut hashes = vec![0; t];
        for i in 0..r {
            for token in query_start_loc[i] as usize..query_start_loc[i + 1] as usize {
                let position = positions[token] as usize;
                let mut mixed = 0;
                for group in 0..self.num_groups {
                    let parent = self.read(group, rows[i] as usize, position);
                    let hash = mix(parent, input_ids[token], position);
                    self.kv[slot_mapping[group * t + token] as usize] = hash;
                    assert!(
                        group == 0 || mixed == hash,
                        "the KV groups of a request disagree"
                    );
                    mixed = hash;
                }
                hashes[token] = mixed;
            }
        }
        let sampled: Vec<i32> = sample_rows
            .iter()
            .map(|&token| token_of(hashes[token as usize]))
            .collect();
        for (&token, &sampled) in sample_rows.iter().zip(&sampled) {
            let i = query_start_loc.partition_point(|&start| start <= token) - 1;
            self.last_token[rows[i] as usize] = sampled;
        }
        sampled
    }

    /// What a block holds.
    pub(super) fn block_mut(&mut self, block: u32) -> &mut [u64] {
        let start = block as usize * self.block_size;
        &mut self.kv[start..start + self.block_size]
    }

    /// The hash of the token before `position`.
    fn read(&self, group: usize, row: usize, position: usize) -> u64 {
        let Some(position) = position.checked_sub(1) else {
            return 0;
        };
        let num_indices = self.block_tables.len() / (self.num_groups * self.computed.len());
        let line = (group * self.computed.len() + row) * num_indices;
        let block = self.block_tables[line + position / self.block_size] as usize;
        self.kv[block * self.block_size + position % self.block_size]
    }
}

fn copy_blocks(size: usize, pairs: &[[i32; 2]], from: &[u64], to: &mut [u64]) {
    for &[source, target] in pairs {
        let (source, target) = (source as usize * size, target as usize * size);
        to[target..target + size].copy_from_slice(&from[source..source + size]);
    }
}
