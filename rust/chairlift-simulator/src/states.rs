//! Recurrent states of the fake model: of each row a hash of all its tokens, copied as plans say.

use std::collections::HashSet;

use chairlift_core::{
    Config,
    plan::{COPY_STATE, LOAD_STATE, SAVE_STATE},
};

use crate::{oracle::recur, random::mix};

pub(crate) struct States {
    /// None of a model without.
    rows: Vec<u64>,
    snapshots: Vec<u64>,
}

impl States {
    pub(crate) fn new(config: &Config) -> Self {
        let num_rows = config.state_snapshots.map_or(0, |_| config.max_num_seqs);
        Self {
            rows: vec![0; num_rows],
            snapshots: vec![0; config.state_snapshots.unwrap_or(0)],
        }
    }

    /// Moves the state of a row on by tokens from position `start` on, and gives it.
    pub(crate) fn advance(
        &mut self,
        row: usize,
        ids: &[i32],
        start: usize,
        root: u64,
    ) -> Option<u64> {
        let state = self.rows.get_mut(row)?;
        if start == 0 {
            *state = root;
        }
        for (position, &id) in (start..).zip(ids) {
            *state = recur(*state, id, position);
        }
        Some(*state)
    }

    /// Does what a plan says of one kind: each goes to a place of its own.
    pub(crate) fn update(&mut self, updates: &[[i32; 3]], kind: i32) -> Result<(), String> {
        let mut targets = HashSet::new();
        let before = self.rows.clone();
        for &[row, _, other] in updates.iter().filter(|update| update[1] == kind) {
            let (row, other) = (row as usize, other as usize);
            match kind {
                LOAD_STATE => self.rows[row] = self.snapshots[other],
                COPY_STATE => self.rows[row] = before[other],
                _ => self.snapshots[other] = self.rows[row],
            }
            let target = if kind == SAVE_STATE { other } else { row };
            if !targets.insert(target) {
                return Err(format!("two recurrent states are written to {target}"));
            }
        }
        Ok(())
    }

    /// What is in a snapshot.
    pub(crate) fn snapshot(&self, snapshot: u32) -> u64 {
        self.snapshots[snapshot as usize]
    }

    /// Fills a snapshot from outside.
    pub(crate) fn fill(&mut self, snapshot: u32, content: u64) {
        self.snapshots[snapshot as usize] = content;
    }

    /// A step has failed, or a row was not finite: its state is anything, and what was saved of it.
    pub(crate) fn scribble(&mut self, row: usize, saves: &[[i32; 3]]) {
        let Some(state) = self.rows.get_mut(row) else {
            return;
        };
        *state = mix(*state ^ 0xBAD);
        for &[_, _, snapshot] in saves.iter().filter(|save| save[0] as usize == row) {
            self.snapshots[snapshot as usize] = *state;
        }
    }
}
