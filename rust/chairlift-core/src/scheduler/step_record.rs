//! What a step did, row by row: it is recorded where it is decided, so that pictures and traces guess nothing.

use super::{Item, Scheduler};
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

impl Scheduler {
    /// What the step did that ended last; of a step that failed no row has accepted drafts.
    pub fn last_step(&self) -> &StepRecord {
        &self.last_step
    }

    /// Begins the record of a step that ends.
    pub(super) fn record_step(&mut self, items: &[Item], preempted: Vec<RequestId>) {
        let record = &mut self.last_step;
        record.rows.clear();
        record.rows.extend(items.iter().map(RowRecord::of));
        record.preempted = preempted;
    }

    /// Whether the sequence that a step names has not ended.
    pub(super) fn is_live_item(&self, item: Item) -> bool {
        let request = self.slots.get(item.slot);
        request.is_some_and(crate::request::Request::is_live)
    }
}
