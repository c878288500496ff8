//! Every query sees every token that it may see exactly once, however the step is cut.

use std::collections::BTreeMap;

use chairlift_device::attention_work::{Cut, CutError, Pieces, Rows, TILE_WIDTH, WORK_WIDTH};
use proptest::prelude::*;

const CUT: Cut = Cut {
    num_kv_heads: 2,
    group: 4,
    split_len: 128,
    decode_rows: 16,
    tile_rows: 64,
    window: 0,
};

/// Where an entry of the work is: line of the row, KV head, first token, index of the split.
type EntryStart = [i32; 4];

/// Rows as (queries, tokens), each at the line of its index; gives work and tiles as entries.
fn cut(
    how: &Cut,
    rows: &[(usize, usize)],
    work_room: usize,
) -> (Vec<EntryStart>, Vec<[i32; TILE_WIDTH]>) {
    let (work, tiles) = cut_whole(how, rows, work_room);
    let place = |entry: &[i32; WORK_WIDTH]| [entry[0], entry[1], entry[2], entry[3]];
    (work.iter().map(place).collect(), tiles)
}

/// The same with whole entries.
fn cut_whole(
    how: &Cut,
    rows: &[(usize, usize)],
    work_room: usize,
) -> (Vec<[i32; WORK_WIDTH]>, Vec<[i32; TILE_WIDTH]>) {
    let lines: Vec<_> = (0..rows.len() as i32).collect();
    let (mut query_start_loc, mut at) = (vec![0], 0);
    for (queries, _) in rows {
        at += *queries as i32;
        query_start_loc.push(at);
    }
    let seq_lens: Vec<_> = rows.iter().map(|row| row.1 as i32).collect();
    let mut work = vec![-7; work_room * WORK_WIDTH];
    let mut tiles = vec![-7; 4096 * TILE_WIDTH];
    let step = Rows {
        lines: &lines,
        query_start_loc: &query_start_loc,
        seq_lens: &seq_lens,
    };
    let pieces = how.cut(step, &mut work, &mut tiles).expect("a step");
    let Pieces {
        num_work,
        num_tiles,
        work_rows,
    } = pieces;
    let packed = work.chunks(WORK_WIDTH).take(num_work);
    let max_rows = packed.map(|entry| entry[5] as usize * how.group).max();
    assert_eq!(work_rows, max_rows.unwrap_or(0));
    assert!(work[num_work * WORK_WIDTH..].iter().all(|&n| n == -7));
    (
        work.as_chunks().0[..num_work].to_vec(),
        tiles.as_chunks().0[..num_tiles].to_vec(),
    )
}

#[test]
fn a_decode_is_cut_into_splits_and_the_longest_row_comes_first() {
    let (work, tiles) = cut(&CUT, &[(1, 5), (1, 300)], 64);
    let of_long = |head| [[1, head, 0, 0], [1, head, 128, 1], [1, head, 256, 2]];
    let expected = [of_long(0), of_long(1)].concat();
    assert_eq!(work[..6], expected);
    assert_eq!(work[6..], [[0, 0, 0, 0], [0, 1, 0, 0]]);
    assert!(tiles.is_empty());
}

#[test]
fn an_entry_says_all_of_its_row() {
    let (work, _) = cut_whole(&CUT, &[(1, 5), (3, 40)], 64);
    assert_eq!(work[0], [0, 0, 0, 0, 0, 1, 5, 0]);
    assert_eq!(work[3], [1, 1, 0, 0, 1, 3, 40, 0]);
}

#[test]
fn a_chunk_is_cut_into_tiles_and_the_longest_comes_first() {
    let (work, tiles) = cut(&CUT, &[(20, 20), (4, 4)], 64);
    assert_eq!(work, [[1, 0, 0, 0], [1, 1, 0, 0]], "16 packed rows");
    assert_eq!(tiles, [[0, 0, 64], [0, 1, 64], [0, 0, 0], [0, 1, 0]]);
}

#[test]
fn a_window_leaves_out_the_splits_before_it() {
    let windowed = Cut { window: 10, ..CUT };
    let (work, _) = cut(&windowed, &[(1, 400)], 64);
    assert_eq!(work, [[0, 0, 384, 0], [0, 1, 384, 0]]);
    let (work, _) = cut(&windowed, &[(1, 386)], 64);
    assert_eq!(work[..2], [[0, 0, 256, 0], [0, 0, 384, 1]]);
}

#[test]
fn a_row_that_the_work_list_has_no_room_for_becomes_tiles() {
    let (work, tiles) = cut(&CUT, &[(1, 300), (1, 100)], 5);
    assert_eq!(work, [[1, 0, 0, 0], [1, 1, 0, 0]]);
    assert_eq!(tiles, [[0, 0, 0], [0, 1, 0]]);
}

#[test]
fn padding_is_no_work() {
    assert_eq!(cut(&CUT, &[(0, 0), (1, 3), (0, 0)], 8).0.len(), 2);
}

#[test]
fn what_is_no_step_is_refused() {
    let mut room = [0; 64];
    let mut more = [0; 64];
    let mut refuses =
        |starts: &[i32], lens: &[i32]| refused(&[0], starts, lens, &mut room, &mut more).is_err();
    assert!(refuses(&[0], &[1]));
    assert!(refuses(&[0, 2], &[1]));
    assert!(refuses(&[2, 0], &[3]));
    assert!(refuses(&[0, 1], &[-1]));
    let starts = [0, 100];
    assert!(
        refused(&[0], &starts, &[100], &mut [], &mut [0; 3]).is_err(),
        "no room for its tiles"
    );
    assert!(
        refused(&[], &starts, &[100], &mut [0; 64], &mut [0; 64]).is_err(),
        "a row without a line"
    );
}

fn refused(
    lines: &[i32],
    query_start_loc: &[i32],
    seq_lens: &[i32],
    work: &mut [i32],
    tiles: &mut [i32],
) -> Result<Pieces, CutError> {
    let rows = Rows {
        lines,
        query_start_loc,
        seq_lens,
    };
    CUT.cut(rows, work, tiles)
}

fn step() -> impl Strategy<Value = (Cut, Vec<(usize, usize)>, usize)> {
    let how = (1..4_usize, 1..9_usize, 0..2_usize, 0..300_usize).prop_map(
        |(num_kv_heads, group, long, window)| Cut {
            num_kv_heads,
            group,
            split_len: [128, 512][long],
            tile_rows: [64, 128][long],
            window,
            ..CUT
        },
    );
    let row = (0..40_usize, prop_oneof![0..700_usize, 2000..9000_usize])
        .prop_map(|(queries, before)| (queries, queries + before));
    (how, prop::collection::vec(row, 0..6), 0..60_usize)
}

proptest! {
    #[test]
    fn each_query_sees_each_of_its_tokens_once((how, rows, room) in step()) {
        let (work, tiles) = cut(&how, &rows, room);
        let mut of_row: BTreeMap<(i32, i32), Vec<(i32, i32)>> = BTreeMap::new();
        for (place, [row, head, token, split]) in work.iter().enumerate() {
            let list = of_row.entry((*row, *head)).or_default();
            prop_assert_eq!(*split as usize, list.len(), "splits come in order");
            let is_next = place == 0 || *split == 0 || work[place - 1][..2] == [*row, *head];
            prop_assert!(is_next, "and one after the other");
            list.push((*token, *split));
        }
        let tiled: Vec<_> = tiles.iter().map(|tile| (tile[0], tile[1], tile[2])).collect();
        for (index, &(queries, seq_len)) in rows.iter().enumerate() {
            for head in 0..how.num_kv_heads {
                let splits = of_row.remove(&(index as i32, head as i32)).unwrap_or_default();
                let mine: Vec<_> = tiled.iter()
                    .filter(|tile| (tile.0, tile.1) == (index as i32, head as i32)).collect();
                let expected = if splits.is_empty() { (queries * how.group).div_ceil(how.tile_rows) } else { 0 };
                prop_assert_eq!(mine.len(), expected, "a row is cut one way");
                if let (Some(first), Some(last)) = (splits.first(), splits.last()) {
                    let seen = if how.window == 0 { 0 } else { (seq_len - queries + 1).saturating_sub(how.window) };
                    let of_row = if how.split_len == 128 { 128 } else if seq_len <= 4096 { 256 } else { 512 };
                    prop_assert_eq!(first.0 as usize, seen / of_row * of_row);
                    prop_assert!((last.0 as usize) < seq_len && last.0 as usize + of_row >= seq_len);
                    prop_assert!(splits.windows(2).all(|pair| pair[1].0 == pair[0].0 + of_row as i32));
                    prop_assert!(queries * how.group <= how.decode_rows);
                }
            }
        }
        prop_assert!(of_row.is_empty());
    }

    #[test]
    fn where_a_row_is_cut_does_not_depend_on_the_others((how, rows, _) in step()) {
        let (together, _) = cut(&how, &rows, 4096);
        for (index, row) in rows.iter().enumerate() {
            let (alone, _) = cut(&how, &[*row], 4096);
            let mine: Vec<_> = together.iter().filter(|work| work[0] == index as i32)
                .map(|work| [0, work[1], work[2], work[3]]).collect();
            prop_assert_eq!(alone, mine);
        }
    }
}

#[test]
fn a_step_that_is_none_is_an_error_and_takes_no_memory() {
    let refused = |how: &Cut, starts: &[i32], seq_lens: &[i32]| {
        let rows = Rows {
            lines: &[0],
            query_start_loc: starts,
            seq_lens,
        };
        let error = how.cut(rows, &mut [], &mut [0; 12]);
        error.expect_err("no step").to_string()
    };
    let long = i32::MAX;
    assert_eq!(
        refused(&CUT, &[i32::MIN, long], &[long]),
        "seq_lens: a row has more queries than tokens"
    );
    let wide = Cut {
        group: 1 << 30,
        ..CUT
    };
    assert_eq!(
        refused(&wide, &[0, long], &[long]),
        "group: expected at most 2147483647 packed rows, got 2147483647 queries times 1073741824"
    );
    let fine = Cut {
        num_kv_heads: long as usize,
        group: 1,
        tile_rows: 1,
        ..CUT
    };
    assert_eq!(
        refused(&fine, &[0, long], &[long]),
        "tiles: expected at least 13835058042397261827 integers, got 12"
    );
    for (group, got) in [(0, "0"), (usize::MAX, "18446744073709551615")] {
        let message = format!("group: expected 1 to 2147483647, got {got}");
        assert_eq!(refused(&Cut { group, ..CUT }, &[0, 1], &[1]), message);
    }
}

#[test]
fn rows_without_queries_have_no_work_however_many_heads_there_are() {
    let many = Cut {
        num_kv_heads: i32::MAX as usize,
        ..CUT
    };
    assert_eq!(cut(&many, &[(0, 100); 40], 8), (vec![], vec![]));
}
