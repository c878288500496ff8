//! What the rows of a step did, packed for numpy.

use chairlift_core::scheduler::{RowWork, StepRecord};

/// `[R, 4]` of 32 bits: work, drafts, accepted drafts, whether the row finished.
pub(crate) fn packed(record: &StepRecord) -> Vec<[u32; 4]> {
    let values = record.rows.iter().map(|row| {
        let work = match row.work {
            RowWork::Prefill => 0,
            RowWork::Decode => 1,
            RowWork::Verify => 2,
        };
        [
            work,
            row.num_drafts,
            row.num_accepted,
            u32::from(row.is_finished),
        ]
    });
    values.collect()
}
