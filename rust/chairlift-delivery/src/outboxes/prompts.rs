//! Pieces of prompts that are sent back.

use chairlift_core::events::{Event, EventKind, Events};

use super::{Outboxes, Posted, log_of, numbered};
use crate::track::Scores;

impl Outboxes {
    /// Sends a piece of a prompt to the stream of its request; false if it is none, or the request is not tracked.
    pub(super) fn post_prompt(
        &mut self,
        event: &Event,
        events: &Events,
        scores: Scores<'_>,
        posted: &mut Posted,
    ) -> bool {
        let EventKind::Prompt {
            offset,
            text,
            tokens,
            scores: range,
        } = &event.kind
        else {
            return false;
        };
        let Some(track) = self.tracks.get_mut(&event.request) else {
            return false;
        };
        let Some(stream) = self.streams.get_mut(&track.stream) else {
            return true;
        };
        let piece = scores.output(
            &events.text[text.clone()],
            &events.tokens[tokens.clone()],
            range.clone(),
        );
        let encoded = track.prompt_event(*offset, piece);
        let number = track.next_number();
        let encoded = numbered(&encoded, number);
        if stream.is_empty() {
            posted.woken.push(track.stream);
        }
        stream.put(&encoded);
        stream.num_token_bytes += encoded.len();
        if let Some(log) = log_of(&mut self.logs, track.options.log) {
            log.put(number, &encoded);
        }
        if stream.fill(self.max_token_bytes) {
            posted.filled.push(track.stream);
        }
        true
    }
}
