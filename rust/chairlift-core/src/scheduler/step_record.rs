//! What a step did, row by row: it is recorded where it is decided, so that pictures and traces guess nothing.

use super::Item;
use crate::ids::{RequestId, Row};

/// What a row computed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowWork {
    /// A chunk of its prompt, or again what a preemption or a failed step lost.
    Prefill,
    /// Its last sampled token.
    Decode,
    /// Its last sampled token and drafts behind it.
    Verify,
}

/// One row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRecord {
    /// The row of the batch.
    pub row: Row,
    /// What it computed.
    pub work: RowWork,
    /// Tokens that it computed, drafts included.
    pub num_tokens: u32,
    /// Drafts that it checked.
    pub num_drafts: u32,
    /// Drafts that the answer took.
    pub num_accepted: u32,
    /// The step gave its last token, or failed it.
    pub is_finished: bool,
}

/// A step that ended.
#[derive(Clone, Debug, Default)]
pub struct StepRecord {
    /// In the order of the plan's rows.
    pub rows: Vec<RowRecord>,
    /// The requests that lost a row when the step was planned, or since the step before: one entry per sequence.
    pub preempted: Vec<RequestId>,
}

impl RowRecord {
    /// A row of a step before its tokens are known.
    pub(super) fn of(item: &Item) -> Self {
        let num_drafts = item.num_samples.saturating_sub(1);
        // The last chunk of a prompt can have drafts behind it.
        let work = match (item.is_decode, num_drafts) {
            (false, _) => RowWork::Prefill,
            (true, 0) => RowWork::Decode,
            (true, _) => RowWork::Verify,
        };
        Self {
            row: item.row,
            work,
            num_tokens: item.num_tokens + num_drafts,
            num_drafts,
            num_accepted: 0,
            is_finished: false,
        }
    }
}

impl StepRecord {
    /// Begins the record of a step that ends, in the memory of the last one.
    pub(super) fn begin(&mut self, items: &[Item], preempted: Vec<RequestId>) {
        self.rows.clear();
        self.rows.extend(items.iter().map(RowRecord::of));
        self.preempted = preempted;
    }
}
