//! Plans against tables of a few rows.

use super::*;
use crate::plan::Plan;

#[test]
fn positions_and_slots_follow_the_block_table() {
    let mut plan = Plan::default();
    plan.assign(1, 0, 0, 3, 2);
    for (block_index, block) in [(0, 7), (1, 2)] {
        plan.set_block(0, 1, block_index, block);
    }
    plan.schedule(1, &[50, 51]);
    plan.score(0, 2, 52);
    plan.schedule(0, &[LAST_SAMPLED]);
    plan.sample();
    let mut buffer = vec![0; 64];
    let length = plan.encode(&mut buffer);

    let (mut computed, mut row_slot, mut row_index) = ([5, 0], [0; 2], [0; 2]);
    let mut row_adapter = [0; 2];
    let mut block_tables = [9, 4, 0, 0];
    let mut tables = RowTables {
        computed: &mut computed,
        last_token: &[42, 0],
        row_slot: &mut row_slot,
        row_index: &mut row_index,
        row_adapter: &mut row_adapter,
        block_tables: &mut block_tables,
        num_kv_groups: 1,
    };
    let mut out = [[0; 4]; 10];
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
    ] = &mut out;
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
    let shape = apply_plan(&buffer[..length], 4, &mut tables, &mut inputs).expect("applies");
    assert_eq!(
        shape,
        StepShape {
            num_rows: 2,
            num_tokens: 3,
            num_samples: 1,
            num_scores: 2,
            num_adapted: 1
        }
    );
    assert_eq!(inputs.input_ids[..3], [50, 51, 42]);
    assert_eq!(inputs.positions[..3], [3, 4, 5]);
    assert_eq!(inputs.adapters[..3], [2, 2, 0]);
    assert_eq!(inputs.score_rows[..2], [0, 1]);
    assert_eq!(inputs.score_targets[..2], [51, 52]);
    assert_eq!(inputs.slot_mapping[..3], [7 * 4 + 3, 2 * 4, 4 * 4 + 1]);
    assert_eq!(inputs.query_start_loc[..3], [0, 2, 3]);
    assert_eq!(
        (
            inputs.seq_lens[0],
            inputs.seq_lens[1],
            inputs.sample_rows[0]
        ),
        (5, 6, 2)
    );
    assert_eq!(computed, [6, 5]);
}

/// Schedules `count` tokens of a row of two blocks of four, from `start` on, into buffers for `room` tokens.
fn apply_one_row(start: usize, count: usize, room: usize) -> Result<StepShape, PlanError> {
    let mut plan = Plan::default();
    plan.assign(0, 0, 0, start, 0);
    plan.schedule(0, &vec![1; count]);
    let mut buffer = vec![0; 64];
    let length = plan.encode(&mut buffer);
    let mut tables = RowTables {
        computed: &mut [0],
        last_token: &[0],
        row_slot: &mut [0],
        row_index: &mut [0],
        row_adapter: &mut [0],
        block_tables: &mut [1, 2],
        num_kv_groups: 1,
    };
    let mut tokens = [(); 4].map(|()| vec![0; room]);
    let [input_ids, positions, slot_mapping, adapters] = &mut tokens;
    let mut inputs = StepInputs {
        rows: &mut [0],
        input_ids,
        positions,
        slot_mapping,
        query_start_loc: &mut [0; 2],
        seq_lens: &mut [0],
        sample_rows: &mut [],
        score_rows: &mut [],
        score_targets: &mut [],
        adapters,
    };
    apply_plan(&buffer[..length], 4, &mut tables, &mut inputs)
}

#[test]
fn a_row_is_filled_to_its_last_slot_and_no_further() {
    assert!(apply_one_row(7, 1, 1).is_ok());
    let error = |start, count| apply_one_row(start, count, 8).map_err(|error| error.0);
    assert_eq!(error(7, 2), Err("plan: row length 9 is not below 9".into()));
    assert_eq!(
        error(9, 0),
        Err("plan: computed tokens 9 is not below 9".into())
    );
}

#[test]
fn buffers_that_are_too_small_are_refused_by_name() {
    let error = apply_one_row(0, 3, 2).map_err(|error| error.0);
    assert_eq!(
        error,
        Err("input_ids: expected at least 3 entries, got 2".into())
    );
}

/// Applies a plan to tables of two rows with two blocks of four each; gives the error and all tables.
fn apply_to_two_rows(plan: &Plan, num_kv_groups: usize) -> (Option<String>, [Vec<i32>; 5]) {
    let mut buffer = vec![0; 64];
    let length = plan.encode(&mut buffer);
    let [mut computed, mut row_slot, mut row_index, mut row_adapter] =
        [[5, 2], [7, 8], [1, 0], [0, 3]];
    let mut block_tables = [1, 2, 3, 4];
    let mut tables = RowTables {
        computed: &mut computed,
        last_token: &[0, 0],
        row_slot: &mut row_slot,
        row_index: &mut row_index,
        row_adapter: &mut row_adapter,
        block_tables: &mut block_tables,
        num_kv_groups,
    };
    let mut tokens = [(); 7].map(|()| [0; 8]);
    let [
        input_ids,
        positions,
        slot_mapping,
        adapters,
        sample_rows,
        score_rows,
        score_targets,
    ] = &mut tokens;
    let mut inputs = StepInputs {
        rows: &mut [0; 2],
        input_ids,
        positions,
        slot_mapping,
        query_start_loc: &mut [0; 3],
        seq_lens: &mut [0; 2],
        sample_rows,
        score_rows,
        score_targets,
        adapters,
    };
    let error = apply_plan(&buffer[..length], 4, &mut tables, &mut inputs).err();
    let tables = [
        computed.to_vec(),
        row_slot.to_vec(),
        row_index.to_vec(),
        row_adapter.to_vec(),
        block_tables.to_vec(),
    ];
    (error.map(|error| error.0), tables)
}

/// Adds a part to a plan; words of the error.
type Part = (fn(&mut Plan), &'static str);

#[test]
fn a_plan_that_is_refused_changes_no_table() {
    let before = apply_to_two_rows(&Plan::default(), 1).1;
    // Each is good up to its last part.
    let good = |plan: &mut Plan| {
        plan.assign(0, 9, 2, 3, 1);
        plan.assign(0, 10, 3, 0, 2);
        plan.set_block(0, 1, 1, 6);
        plan.schedule(1, &[1, 2]);
    };
    let mut applied = Plan::default();
    good(&mut applied);
    assert_ne!(apply_to_two_rows(&applied, 1), (None, before.clone()));
    let parts: [Part; 4] = [
        (|plan| plan.schedule(5, &[1]), "row 5"),
        (|plan| plan.schedule(1, &[1; 6]), "row length"),
        (|plan| plan.assign(2, 0, 0, 0, 0), "assigned row 2"),
        (|plan| plan.set_block(0, 0, 2, 1), "block index 2"),
    ];
    for (part, words) in parts {
        let mut plan = Plan::default();
        good(&mut plan);
        part(&mut plan);
        let (error, tables) = apply_to_two_rows(&plan, 1);
        let error = error.expect("a plan that does not fit");
        assert!(error.contains(words), "{error}");
        assert_eq!(tables, before, "{error}");
    }
}

#[test]
fn tables_without_kv_groups_are_refused() {
    let (error, _) = apply_to_two_rows(&Plan::default(), 0);
    assert_eq!(
        error.as_deref(),
        Some("num_kv_groups: expected at least 1, got 0")
    );
}
