//! What the rows of a step did, packed for numpy.

use chairlift_core::scheduler::{RowWork, StepRecord};

/// `[R, 6]` of 32 bits: row, work, tokens, drafts, accepted drafts, whether the row finished.
pub(crate) fn packed(record: &StepRecord) -> Vec<u8> {
    let values = record.rows.iter().flat_map(|row| {
        let work = match row.work {
            RowWork::Prefill => 0,
            RowWork::Decode => 1,
            RowWork::Verify => 2,
        };
        [
            row.row,
            work,
            row.num_tokens,
            row.num_drafts,
            row.num_accepted,
            u32::from(row.is_finished),
        ]
    });
    values.flat_map(u32::to_ne_bytes).collect()
}
