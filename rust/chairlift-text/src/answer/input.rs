//! The text that a parser has not taken yet.
use super::{Kind, Part, Sink};

/// Text that is not taken yet, and whether it is all that there will be.
pub(super) struct Input<'a> {
    pub(super) rest: &'a str,
    pub(super) is_end: bool,
}

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// Gives the next `len` bytes as they are.
    pub(super) fn pass(&mut self, len: usize, kind: Kind, out: Sink<'_>) {
        if len > 0 {
            let raw = self.take(len);
            let text = if kind == Kind::Markup { "" } else { raw };
            out(Part { kind, text, raw });
        }
    }

    pub(super) fn white_len(&self) -> usize {
        self.rest.len() - self.rest.trim_start().len()
    }

    /// Whether the text from `at` on begins with `mark`; None: it may, once more of it is there.
    pub(super) fn begins(&self, at: usize, mark: &str) -> Option<bool> {
        let rest = &self.rest[at..];
        let is_open = !self.is_end && rest.len() < mark.len() && mark.starts_with(rest);
        (!is_open).then(|| rest.starts_with(mark))
    }
}

/// Bytes before the end that may begin a mark: nothing waits at the end of the answer.
pub(super) fn undecided_from(input: &Input<'_>, mark: &str) -> usize {
    let open = if input.is_end {
        0
    } else {
        open_len(input.rest, &[mark])
    };
    input.rest.len() - open
}

/// Bytes at the end of `text` that may begin a mark.
pub(super) fn open_len(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len() - 1).max().unwrap_or(0);
    let lens = (1..=longest.min(text.len())).rev();
    let mut possible = lens.filter(|len| text.is_char_boundary(text.len() - len));
    possible
        .find(|len| {
            let end = &text[text.len() - len..];
            marks.iter().any(|mark| mark.starts_with(end))
        })
        .unwrap_or(0)
}
