//! Cuts the attention of a step into items of work, and these into equal shares.

use crate::{
    attention::kv_layout::{BLOCK_SIZE, CacheShape},
    error::{ArgumentError, expect_equal},
    memory::rows::Rows,
};
use std::ops::Range;

/// Query rows (tokens times heads) of a work item: a few tiles share each load of a block, and a
/// chunk still gives enough items to balance.
pub(crate) const ITEM_ROWS: usize = 48;

/// The load of a block takes about as long as computing so many rows with it.
const LOAD: usize = 9;

/// The ends of a row (its query, the span of which it sees a part, its output) take about as long as so many blocks.
const ENDS: usize = 4;

/// Which tokens are computed, and where their row's blocks are.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    /// `[max_num_seqs, max_blocks_per_row]`.
    pub block_table: Rows<'a, i32>,
    /// `[R]`, lines of `block_table`.
    pub rows: &'a [i32],
    /// `[R + 1]`, where each row's queries start.
    pub query_start_loc: &'a [i32],
    /// `[R]`, tokens of each row; its queries are the last of them.
    pub seq_lens: &'a [i32],
}

impl Sequences<'_> {
    /// Pairs of a query and a token of its row, seen or not: a measure of the work, also of lists that are wrong.
    pub fn num_pairs(&self) -> usize {
        let rows = self.query_start_loc.windows(2).zip(self.seq_lens);
        let pairs = rows.map(|(starts, &len)| {
            let queries = usize::try_from(i64::from(starts[1]) - i64::from(starts[0]));
            queries
                .unwrap_or(0)
                .saturating_mul(usize::try_from(len).unwrap_or(0))
        });
        pairs.fold(0, usize::saturating_add)
    }
}

/// Adjacent queries of one row and the heads of one KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Line of the block table.
    pub row: usize,
    /// Whose keys and values.
    pub kv_head: usize,
    /// Indices of the queries.
    pub tokens: Range<usize>,
    /// Position of the first query in its row.
    pub position: usize,
    /// Blocks that some query sees.
    pub blocks: Range<usize>,
    /// About how long it takes, in rows of a block.
    pub cost: usize,
}

/// First token that the query at `position` sees.
#[inline(always)]
pub(crate) fn first_visible(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// Cuts a step into items, in the order of rows and tokens, after checking it.
///
/// `group` is the number of query heads of a KV head.
pub(crate) fn work_items(
    shape: CacheShape,
    window: Option<usize>,
    sequences: &Sequences<'_>,
    group: usize,
    num_tokens: usize,
) -> Result<Vec<Item>, ArgumentError> {
    let starts = sequences.query_start_loc;
    let num_rows = sequences.rows.len();
    expect_equal(
        "query_start_loc",
        "one more than rows:",
        num_rows + 1,
        starts.len(),
    )?;
    expect_equal(
        "seq_lens",
        "as many as rows:",
        num_rows,
        sequences.seq_lens.len(),
    )?;
    if starts[0] != 0 || starts[num_rows] as usize != num_tokens || !starts.is_sorted() {
        let expected = format_args!("ascending from 0 to {num_tokens}");
        return Err(ArgumentError::new(
            "query_start_loc",
            expected,
            format_args!("{starts:?}"),
        ));
    }
    if window == Some(0) {
        return Err(ArgumentError::new("window", "at least 1", 0));
    }
    let tokens_per_item = (ITEM_ROWS / group).max(1);
    let mut items = Vec::new();
    for (index, &row) in sequences.rows.iter().enumerate() {
        let queries = starts[index] as usize..starts[index + 1] as usize;
        if queries.is_empty() {
            continue;
        }
        let seq_len = check_row(shape, window, sequences, index, queries.len())?;
        let position = |token: usize| seq_len - (queries.end - token);
        for first in queries.clone().step_by(tokens_per_item) {
            let tokens = first..queries.end.min(first + tokens_per_item);
            let start = first_visible(position(first), window) / BLOCK_SIZE;
            let blocks = start..position(tokens.end - 1) / BLOCK_SIZE + 1;
            let rows = tokens.len() * group;
            let cost = blocks.len() * rows.max(LOAD) + rows * ENDS;
            items.extend((0..shape.num_kv_heads).map(|kv_head| Item {
                row: row as usize,
                kv_head,
                tokens: tokens.clone(),
                position: position(first),
                blocks: blocks.clone(),
                cost,
            }));
        }
    }
    Ok(items)
}

/// Checks one row and the blocks that its queries see; gives its length.
fn check_row(
    shape: CacheShape,
    window: Option<usize>,
    sequences: &Sequences<'_>,
    index: usize,
    num_queries: usize,
) -> Result<usize, ArgumentError> {
    let table = sequences.block_table;
    let row = sequences.rows[index];
    if row < 0 || row as usize >= table.len() {
        let expected = format_args!("lines in 0..{}", table.len());
        return Err(ArgumentError::new("rows", expected, row));
    }
    let seq_len = sequences.seq_lens[index];
    let longest = table.width() * BLOCK_SIZE;
    if seq_len < 0 || !(num_queries..=longest).contains(&(seq_len as usize)) {
        let expected = format_args!("lengths in {num_queries}..={longest}");
        return Err(ArgumentError::new("seq_lens", expected, seq_len));
    }
    let seq_len = seq_len as usize;
    let start = first_visible(seq_len - num_queries, window) / BLOCK_SIZE;
    let blocks = &table.row(row as usize)[start..seq_len.div_ceil(BLOCK_SIZE)];
    let num_blocks = shape.num_blocks;
    match blocks
        .iter()
        .find(|&&block| block < 0 || block as usize >= num_blocks)
    {
        None => Ok(seq_len),
        Some(block) => {
            let expected = format_args!("blocks in 0..{num_blocks}");
            Err(ArgumentError::new("block_table", expected, block))
        }
    }
}

/// Contiguous shares of the items, of about equal cost, none of them empty.
///
/// There are fewer than `threads` where a share would cost less than `grain`.
pub(crate) fn shares(items: &[Item], threads: usize, grain: usize) -> Vec<Range<usize>> {
    let total: usize = items.iter().map(|item| item.cost).sum();
    let threads = threads.min(total / grain).max(1);
    let mut shares = Vec::with_capacity(threads);
    let (mut start, mut done) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        done += item.cost;
        if done * threads >= total * (shares.len() + 1) {
            shares.push(start..index + 1);
            start = index + 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(cost: usize) -> Item {
        Item {
            row: 0,
            kv_head: 0,
            tokens: 0..1,
            position: 0,
            blocks: 0..1,
            cost,
        }
    }

    #[test]
    fn shares_cover_the_items_in_order_and_are_never_empty() {
        for threads in 1..9 {
            for costs in [
                vec![],
                vec![5],
                vec![1, 100, 1],
                vec![3; 40],
                (1..30).collect(),
            ] {
                let items: Vec<Item> = costs.into_iter().map(item).collect();
                let shares = shares(&items, threads, 1);
                assert!(shares.len() <= threads);
                assert!(shares.iter().all(|share| !share.is_empty()));
                assert_eq!(
                    shares.iter().map(ExactSizeIterator::len).sum::<usize>(),
                    items.len()
                );
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    #[test]
    fn equal_items_make_equal_shares() {
        let items: Vec<Item> = (0..40).map(|_| item(7)).collect();
        let shares = shares(&items, 4, 1);
        assert_eq!(shares, [0..10, 10..20, 20..30, 30..40]);
    }

    #[test]
    fn little_work_is_not_shared() {
        let items: Vec<Item> = (0..10).map(|_| item(7)).collect();
        assert_eq!(shares(&items, 4, 100).len(), 1);
        assert_eq!(shares(&items, 4, 30), [0..5, 5..10]);
    }
}
