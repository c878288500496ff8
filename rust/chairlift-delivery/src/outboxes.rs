//! All streams of a server, and the requests that send to them.

use std::collections::HashMap;

use chairlift_core::{
    Nanos, RequestId,
    events::{Event, EventKind, Events},
};

use crate::{
    histogram::Histogram,
    stream::{Stream, StreamId},
    track::{Options, Output, Track},
    wire,
};

/// What became of the events of a step.
#[derive(Debug, Default)]
pub struct Posted {
    /// Streams that had nothing to send and now have.
    pub woken: Vec<StreamId>,
    /// Streams whose unsent tokens now exceed the limit.
    pub filled: Vec<StreamId>,
    /// Requests that got their first tokens.
    pub started: Vec<RequestId>,
    /// Events that are not tokens of a tracked request, as positions in the list.
    pub rest: Vec<usize>,
}

/// Scores of the sample slots of a step, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores<'a> {
    pub logprobs: &'a [f32],
    pub ranks: &'a [i32],
    /// Candidates of each slot.
    pub stride: usize,
    /// `[S, stride]`
    pub candidate_ids: &'a [i32],
    /// `[S, stride]`
    pub candidate_logprobs: &'a [f32],
}

/// Streams, tracks of requests, and what is measured on the way.
#[derive(Debug)]
pub struct Outboxes {
    streams: Vec<Option<Stream>>,
    free: Vec<StreamId>,
    tracks: HashMap<RequestId, Track>,
    max_token_bytes: usize,
    num_tokens: Vec<u64>,
    first_token: Histogram,
    inter_token: Histogram,
}

const NS: f64 = 1e-9;

impl Outboxes {
    /// `max_token_bytes` of unsent tokens make a stream full; the histograms are of seconds.
    pub fn new(max_token_bytes: usize, first_token: Histogram, inter_token: Histogram) -> Self {
        Self {
            streams: Vec::new(),
            free: Vec::new(),
            tracks: HashMap::new(),
            max_token_bytes,
            num_tokens: Vec::new(),
            first_token,
            inter_token,
        }
    }

    /// A stream with nothing to send.
    pub fn open(&mut self) -> StreamId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.streams.push(None);
            StreamId(self.streams.len() - 1)
        });
        self.streams[id.0] = Some(Stream::default());
        id
    }

    /// Forgets a stream and the requests that still send to it.
    pub fn close(&mut self, id: StreamId) {
        if self.streams.get_mut(id.0).and_then(Option::take).is_some() {
            self.free.push(id);
            self.tracks.retain(|_, track| track.stream != id);
        }
    }

    /// Sends a request's first event to a stream, and from now on its tokens, under the client's name of it.
    ///
    /// The event is an encoded `Event` without its number. Returns false if the stream is closed.
    pub fn track(
        &mut self,
        request: RequestId,
        stream_id: StreamId,
        request_id: &str,
        event: &[u8],
        options: Options,
        arrived_at: Nanos,
    ) -> bool {
        let Some(stream) = self.stream(stream_id) else {
            return false;
        };
        let mut track = Track::new(stream_id, request_id, options, arrived_at);
        stream.put(&numbered(event, track.next_number()));
        self.tracks.insert(request, track);
        if self.num_tokens.len() <= options.group {
            self.num_tokens.resize(options.group + 1, 0);
        }
        true
    }

    /// Appends an encoded `Event` that belongs to no live request.
    pub fn put(&mut self, stream: StreamId, event: &[u8]) {
        if let Some(stream) = self.stream(stream) {
            stream.put(event);
        }
    }

    /// Ends an answer: its tokens that wait, then an event if there is one. With the `last` one nothing follows for the
    /// request: what waits of its other answers goes before the event.
    ///
    /// The event is an encoded `Event` without its number.
    pub fn end(&mut self, request: RequestId, index: usize, last: bool, event: Option<&[u8]>) {
        let Some(track) = self.tracks.get_mut(&request) else {
            return;
        };
        if let Some(stream) = self.streams[track.stream.0].as_mut() {
            let all = 0..track.answers.len();
            let ended = if last { all } else { index..index + 1 };
            for index in ended {
                if track.answers[index].is_due {
                    stream.due.retain(|&due| due != (request, index));
                } else {
                    // Kept for an interval; they are sent now.
                    stream.num_token_bytes += track.answers[index].tokens.len();
                }
                send(track, index, stream);
            }
            if let Some(event) = event {
                stream.put(&numbered(event, track.next_number()));
            }
        }
        if last {
            self.tracks.remove(&request);
        }
    }

    /// Forgets a request; what it has not sent is lost.
    pub fn forget(&mut self, request: RequestId) {
        let Some(track) = self.tracks.remove(&request) else {
            return;
        };
        let Some(stream) = self.streams[track.stream.0].as_mut() else {
            return;
        };
        let due = track.answers.iter().filter(|answer| answer.is_due);
        stream.num_token_bytes -= due.map(|answer| answer.tokens.len()).sum::<usize>();
        stream.due.retain(|&(due, _)| due != request);
    }

    /// Takes the tokens of tracked requests out of a step's events.
    pub fn post(&mut self, now: Nanos, events: &Events, scores: Scores<'_>) -> Posted {
        let mut posted = Posted::default();
        for (position, event) in events.list.iter().enumerate() {
            let Some(output) = output(event, events, scores) else {
                posted.rest.push(position);
                continue;
            };
            let Some(track) = self.tracks.get_mut(&event.request) else {
                posted.rest.push(position);
                continue;
            };
            let index = event.index as usize;
            let num_tokens = output.token_ids.len() as u64;
            if num_tokens > 0 {
                self.num_tokens[track.options.group] += num_tokens;
                if !std::mem::replace(&mut track.has_started, true) {
                    let waited = now.saturating_sub(track.arrived_at);
                    self.first_token.add(waited as f64 * NS, 1);
                    posted.started.push(event.request);
                }
                if let Some(last) = track.answers[index].last_token_at.replace(now) {
                    let waited = now.saturating_sub(last) as f64 * NS;
                    self.inter_token.add(waited / num_tokens as f64, num_tokens);
                }
            }
            let kept = track.answers[index].tokens.len();
            let is_due = track.keep(index, output);
            let answer = &mut track.answers[index];
            let Some(stream) = self.streams[track.stream.0].as_mut() else {
                continue;
            };
            if answer.is_due {
                stream.num_token_bytes += answer.tokens.len() - kept;
            } else if is_due {
                if stream.is_empty() {
                    posted.woken.push(track.stream);
                }
                answer.is_due = true;
                stream.due.push((event.request, index));
                stream.num_token_bytes += answer.tokens.len();
            }
            if !stream.is_full && stream.num_token_bytes > self.max_token_bytes {
                stream.is_full = true;
                posted.filled.push(track.stream);
            }
        }
        posted
    }

    /// Everything that waits for a stream, as messages.
    pub fn take(&mut self, id: StreamId) -> Vec<Vec<u8>> {
        let Some(stream) = self.streams.get_mut(id.0).and_then(Option::as_mut) else {
            return Vec::new();
        };
        let mut due = std::mem::take(&mut stream.due);
        for (request, index) in due.drain(..) {
            if let Some(track) = self.tracks.get_mut(&request) {
                send(track, index, stream);
            }
        }
        stream.due = due;
        stream.num_token_bytes = 0;
        stream.is_full = false;
        std::mem::take(&mut stream.messages)
    }

    /// Whether a stream has nothing to send.
    pub fn is_empty(&self, id: StreamId) -> bool {
        let stream = self.streams.get(id.0).and_then(Option::as_ref);
        stream.is_none_or(Stream::is_empty)
    }

    /// Requests that are tracked.
    pub fn num_tracks(&self) -> usize {
        self.tracks.len()
    }

    /// Tokens of tracked requests so far, by group.
    pub fn num_tokens(&self) -> &[u64] {
        &self.num_tokens
    }

    /// Seconds from arrival to the first tokens.
    pub fn first_token(&self) -> &Histogram {
        &self.first_token
    }

    /// Seconds between tokens of a request.
    pub fn inter_token(&self) -> &Histogram {
        &self.inter_token
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(id.0).and_then(Option::as_mut)
    }
}

/// An encoded event with its number: protobuf does not mind the order of fields.
fn numbered(event: &[u8], number: u32) -> Vec<u8> {
    let mut numbered = event.to_vec();
    wire::put_event_number(&mut numbered, number);
    numbered
}

/// What an event says, if it is about tokens.
fn output<'a>(event: &Event, events: &'a Events, scores: Scores<'a>) -> Option<Output<'a>> {
    let EventKind::Tokens {
        text,
        tokens,
        sample_slot,
    } = &event.kind
    else {
        return None;
    };
    let samples = *sample_slot..sample_slot + tokens.len();
    let stride = scores.stride;
    let lines = samples.start * stride..samples.end * stride;
    Some(Output {
        text: &events.text[text.clone()],
        token_ids: &events.tokens[tokens.clone()],
        logprobs: scores.logprobs.get(samples.clone()).unwrap_or_default(),
        ranks: scores.ranks.get(samples).unwrap_or_default(),
        stride,
        candidate_ids: scores.candidate_ids.get(lines.clone()).unwrap_or_default(),
        candidate_logprobs: scores.candidate_logprobs.get(lines).unwrap_or_default(),
    })
}

/// Makes an event of the tokens that an answer has kept, if there are any.
fn send(track: &mut Track, index: usize, stream: &mut Stream) {
    if track.answers[index].tokens.is_empty() {
        track.answers[index].is_due = false;
        return;
    }
    let number = track.tokens_number(index);
    let head = wire::Head {
        request_id: &track.request_id,
        index: index as u32,
        number,
    };
    let answer = &mut track.answers[index];
    let len = wire::tokens_event_len(head, &answer.tokens);
    wire::put_tokens_event(stream.message(len), head, &answer.tokens);
    answer.sent();
}
