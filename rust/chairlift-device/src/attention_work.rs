//! Cuts the attention of a step into work for a GPU, once per step for all layers of a KV group.
//!
//! ```text
//! a row with few queries: whole splits of its tokens, at absolute positions, for each KV head
//!
//!   token      0            s           2 s       seq_len    s is 256 at first, then what gives 16 splits, at most split_len
//!              |  split 0   |  split 1   | split 2 |           -> decode:  (line, head, first token, split, and the row)
//!
//! a row with many: tiles of its queries; `group` query heads share a KV head, so a query is `group` packed rows
//!
//!   packed row 0     tile_rows     2 tile_rows     num_queries * group
//!              |   tile 0   |   tile 1   |   |                 -> prefill: (row, head, first packed row)
//! ```
//!
//! Where a split begins depends on nothing but its row, so that its bits do not depend on the batch. The longest come
//! first: workers that take them in turn end at about the same time.

use std::cmp::Reverse;

use thiserror::Error;

/// Integers of a piece of decode work: line of the block table, KV head, first token of the split, index of the split in
/// its row, first query in the batch, queries, tokens of the row, 0. So a kernel has all with one read.
pub const WORK_WIDTH: usize = 8;
/// Tokens of the shortest splits.
const MIN_SPLIT: usize = 256;
/// Where a row would have more splits than this, they become longer.
const MANY_SPLITS: usize = 16;
/// Integers of a tile: batch index, KV head, first packed row.
pub const TILE_WIDTH: usize = 3;

/// How the attention of a KV group is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub num_kv_heads: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Tokens of a split of a long row.
    pub split_len: usize,
    /// A row goes to decode if it has at most so many packed rows.
    pub decode_rows: usize,
    /// Packed rows of a prefill tile.
    pub tile_rows: usize,
    /// A token sees itself and the `window - 1` before it; 0 sees all.
    pub window: usize,
}

/// How much there is of each; both lists are cut to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    pub num_work: usize,
    pub num_tiles: usize,
    /// The most packed rows of a row in the decode work.
    pub work_rows: usize,
}

/// The rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Line of each row in the block tables.
    pub lines: &'a [i32],
    /// Where the queries of each row begin, and where those of the last end.
    pub query_start_loc: &'a [i32],
    /// Tokens of each row.
    pub seq_lens: &'a [i32],
}

/// A step does not fit the buffers, or is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct CutError(String);

/// One row of the batch.
#[derive(Clone, Copy)]
struct Span {
    index: i32,
    line: i32,
    first_query: i32,
    num_queries: usize,
    seq_len: usize,
}

impl Cut {
    /// Writes the work of a step to the front of both lists.
    ///
    /// A row that `work` has no room for goes to `tiles`, which need no memory for partial results.
    ///
    /// # Errors
    /// If the cut itself is none, the rows are not those of a step, or `tiles` is too short.
    pub fn cut(
        &self,
        rows: Rows<'_>,
        work: &mut [i32],
        tiles: &mut [i32],
    ) -> Result<Pieces, CutError> {
        self.check()?;
        let mut spans = spans(rows)?;
        // The padding of a batch has no work, however many heads there are.
        spans.retain(|span| span.num_queries > 0);
        spans.sort_unstable_by_key(|span| (Reverse(self.num_splits(*span)), span.index));
        let mut rest = work.chunks_exact_mut(WORK_WIDTH);
        let (mut num_work, mut work_rows) = (0, 0);
        let mut large = Vec::new();
        for span in spans {
            let count = self.num_splits(span) * self.num_kv_heads;
            if span.num_queries * self.group > self.decode_rows || count > rest.len() {
                large.push(span);
                continue;
            }
            num_work += count;
            work_rows = work_rows.max(span.num_queries * self.group);
            let (first, split_len) = (self.first_split(span), self.split_len_of_row(span));
            for head in 0..self.num_kv_heads {
                for (split, entry) in (0..self.num_splits(span)).zip(rest.by_ref()) {
                    let token = (first + split) * split_len;
                    let place = [span.line, head as i32, token as i32, split as i32];
                    let row = [span.num_queries as i32, span.seq_len as i32, 0];
                    entry[..4].copy_from_slice(&place);
                    entry[4] = span.first_query;
                    entry[5..].copy_from_slice(&row);
                }
            }
        }
        let num_tiles = self.tile(&large, tiles)?;
        Ok(Pieces {
            num_work,
            num_tiles,
            work_rows,
        })
    }

    /// Counts are those of lists of `i32`, so products of two of them fit `usize`.
    fn check(&self) -> Result<(), CutError> {
        for (name, value) in [
            ("num_kv_heads", self.num_kv_heads),
            ("group", self.group),
            ("split_len", self.split_len),
            ("tile_rows", self.tile_rows),
        ] {
            if value == 0 || i32::try_from(value).is_err() {
                let max = i32::MAX;
                return Err(CutError(format!(
                    "{name}: expected 1 to {max}, got {value}"
                )));
            }
        }
        Ok(())
    }

    /// Tokens of a split of a row: a function of its length alone. Short rows have short splits, so that there is work
    /// for all processors of a GPU; `DecodeBatch` of `decode_split.cuh` computes the same.
    fn split_len_of_row(&self, span: Span) -> usize {
        let mut len = MIN_SPLIT.min(self.split_len);
        while len < self.split_len && span.seq_len > MANY_SPLITS * len {
            len = (2 * len).min(self.split_len);
        }
        len
    }

    /// The split with the oldest token that the row's first query sees.
    fn first_split(&self, span: Span) -> usize {
        self.oldest(span, 0) / self.split_len_of_row(span)
    }

    /// 0 for a row without queries: the padding of a batch.
    fn num_splits(&self, span: Span) -> usize {
        if span.num_queries == 0 {
            return 0;
        }
        span.seq_len.div_ceil(self.split_len_of_row(span)) - self.first_split(span)
    }

    /// The oldest token that a query of the row sees.
    fn oldest(&self, span: Span, query: usize) -> usize {
        let position = span.seq_len - span.num_queries + query;
        match self.window {
            0 => 0,
            window => (position + 1).saturating_sub(window),
        }
    }

    fn tile(&self, spans: &[Span], tiles: &mut [i32]) -> Result<usize, CutError> {
        let num_tiles = self.num_tiles(spans, tiles.len() / TILE_WIDTH)?;
        let mut cut = Vec::with_capacity(num_tiles);
        for &span in spans {
            let num_packed = span.num_queries * self.group;
            for first in (0..num_packed).step_by(self.tile_rows) {
                let last = (first + self.tile_rows).min(num_packed) - 1;
                let end = span.seq_len - span.num_queries + last / self.group + 1;
                let num_tokens = end - self.oldest(span, first / self.group);
                let entries =
                    (0..self.num_kv_heads).map(|head| (num_tokens, span.index, head, first));
                cut.extend(entries);
            }
        }
        cut.sort_unstable_by_key(|&(num_tokens, index, head, first)| {
            (Reverse(num_tokens), index, head, first)
        });
        for (entry, &(_, index, head, first)) in tiles.chunks_exact_mut(TILE_WIDTH).zip(&cut) {
            entry.copy_from_slice(&[index, head as i32, first as i32]);
        }
        Ok(cut.len())
    }

    /// How many tiles the rows make: counted before any is made, so that a step that is far too large takes no memory.
    fn num_tiles(&self, spans: &[Span], room: usize) -> Result<usize, CutError> {
        let mut count = 0_usize;
        for span in spans {
            let num_packed = span.num_queries * self.group;
            if i32::try_from(num_packed).is_err() {
                let (max, queries, group) = (i32::MAX, span.num_queries, self.group);
                return Err(CutError(format!(
                    "group: expected at most {max} packed rows, got {queries} queries times {group}"
                )));
            }
            count = count.saturating_add(num_packed.div_ceil(self.tile_rows) * self.num_kv_heads);
        }
        if room < count {
            let (expected, got) = (count.saturating_mul(TILE_WIDTH), room * TILE_WIDTH);
            return Err(CutError(format!(
                "tiles: expected at least {expected} integers, got {got}"
            )));
        }
        Ok(count)
    }
}

fn spans(rows: Rows<'_>) -> Result<Vec<Span>, CutError> {
    let Rows {
        lines,
        query_start_loc,
        seq_lens,
    } = rows;
    if lines.len() != seq_lens.len() {
        let (expected, got) = (seq_lens.len(), lines.len());
        return Err(CutError(format!(
            "rows: expected {expected} entries, got {got}"
        )));
    }
    let (expected, got) = (seq_lens.len() + 1, query_start_loc.len());
    if got != expected {
        return Err(CutError(format!(
            "query_start_loc: expected {expected} entries, got {got}"
        )));
    }
    let span = |(index, (starts, &seq_len)): (usize, (&[i32], &i32))| {
        let num_queries = usize::try_from(starts[1].checked_sub(starts[0])?).ok()?;
        let seq_len = usize::try_from(seq_len).ok()?;
        (num_queries <= seq_len).then_some(Span {
            index: index as i32,
            line: lines[index],
            first_query: starts[0],
            num_queries,
            seq_len,
        })
    };
    query_start_loc
        .windows(2)
        .zip(seq_lens)
        .enumerate()
        .map(span)
        .collect::<Option<_>>()
        .ok_or_else(|| CutError("seq_lens: a row has more queries than tokens".into()))
}
