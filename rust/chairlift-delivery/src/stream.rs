//! What one call still has to send: encoded events in order, then the tokens that are due.

use chairlift_core::RequestId;

use crate::wire;

/// Clients receive 4 MiB by default; a message of several events stays well below.
const MESSAGE_BYTES: usize = 1 << 20;

/// Names a stream while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub usize);

#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Events that stand for themselves and tokens that came before them, as messages; the last one grows.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Answers with tokens that are due, in order: request and index.
    pub(crate) due: Vec<(RequestId, usize)>,
    /// Memory of tokens that wait, those in `messages` included.
    pub(crate) num_token_bytes: usize,
    pub(crate) is_full: bool,
}

impl Stream {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.due.is_empty()
    }

    /// The message that the next event of `len` bytes belongs to.
    pub(crate) fn message(&mut self, len: usize) -> &mut Vec<u8> {
        let has_room = |message: &Vec<u8>| message.len() + len <= MESSAGE_BYTES;
        if !self.messages.last().is_some_and(has_room) {
            self.messages.push(Vec::with_capacity(len));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Takes back the tokens of a request that are due, so many bytes.
    pub(crate) fn withdraw(&mut self, request: RequestId, num_bytes: usize) {
        self.num_token_bytes -= num_bytes;
        self.due.retain(|&(due, _)| due != request);
    }

    /// Notes whether more bytes wait than may; returns whether that is new.
    pub(crate) fn fill(&mut self, max_token_bytes: usize) -> bool {
        let was_full = self.is_full;
        self.is_full |= self.num_token_bytes > max_token_bytes;
        self.is_full && !was_full
    }

    pub(crate) fn put(&mut self, event: &[u8]) {
        let len = wire::encoded_event_len(event);
        wire::put_event(self.message(len), event);
    }
}
