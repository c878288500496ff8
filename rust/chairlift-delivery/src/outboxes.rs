//! All streams of a server, and the requests that send to them.

mod prompts;

use std::collections::HashMap;

use chairlift_core::{Nanos, RequestId, events::Events};

use crate::{
    histogram::Histogram,
    log::{Log, LogId},
    stream::{Stream, StreamId},
    track::{Options, Output, Scores, Track},
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

/// Streams, tracks of requests, and what is measured on the way.
#[derive(Debug)]
pub struct Outboxes {
    streams: HashMap<StreamId, Stream>,
    num_opened: usize,
    tracks: HashMap<RequestId, Track>,
    logs: HashMap<LogId, Log>,
    num_logs: u64,
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
            streams: HashMap::new(),
            num_opened: 0,
            tracks: HashMap::new(),
            logs: HashMap::new(),
            num_logs: 0,
            max_token_bytes,
            num_tokens: Vec::new(),
            first_token,
            inter_token,
        }
    }

    /// A stream with nothing to send. Its number was no other one's: what is late for a stream that is closed reaches nothing.
    pub fn open(&mut self) -> StreamId {
        let id = StreamId(self.num_opened);
        self.num_opened += 1;
        self.streams.insert(id, Stream::default());
        id
    }

    /// Forgets a stream and the requests that still send to it.
    pub fn close(&mut self, id: StreamId) {
        if self.streams.remove(&id).is_some() {
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
        let number = track.next_number();
        let event = numbered(event, number);
        stream.put(&event);
        if let Some(log) = log_of(&mut self.logs, options.log) {
            log.put(number, &event);
        }
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
    /// The event is an encoded `Event` without its number. One that is `only_logged` is sent to a stream that resumes
    /// the request and not to this one, whose call ends with the error.
    pub fn end(
        &mut self,
        request: RequestId,
        index: usize,
        last: bool,
        event: Option<&[u8]>,
        only_logged: bool,
    ) {
        let Some(track) = self.tracks.get_mut(&request) else {
            return;
        };
        let mut log = log_of(&mut self.logs, track.options.log);
        if let Some(stream) = self.streams.get_mut(&track.stream) {
            let all = 0..track.answers.len();
            let ended = if last { all } else { index..index + 1 };
            for index in ended {
                if track.answers[index].is_due {
                    stream.due.retain(|&due| due != (request, index));
                } else {
                    // Kept for an interval; they are sent now.
                    stream.num_token_bytes += track.answers[index].tokens.len();
                }
                send(track, index, stream, log.as_deref_mut());
            }
            if let Some(event) = event {
                let number = track.next_number();
                let event = numbered(event, number);
                if !only_logged {
                    stream.put(&event);
                }
                if let Some(log) = log {
                    log.put(number, &event);
                }
            }
        }
        if last {
            self.tracks.remove(&request);
        }
    }

    /// Forgets a request; what it has not sent is lost.
    pub fn forget(&mut self, request: RequestId) {
        if let Some(track) = self.tracks.remove(&request)
            && let Some(stream) = self.streams.get_mut(&track.stream)
        {
            stream.withdraw(request, track.num_due_bytes());
        }
    }

    /// A log of at most so many bytes, for `Options`; it stays until it is closed.
    pub fn open_log(&mut self, max_bytes: usize) -> LogId {
        self.num_logs += 1;
        let id = LogId(self.num_logs);
        self.logs.insert(id, Log::new(max_bytes));
        id
    }

    /// Forgets a log.
    pub fn close_log(&mut self, id: LogId) {
        self.logs.remove(&id);
    }

    /// The bytes of a log, whose request has ended, after giving back the memory that it does not need.
    pub fn shrink_log(&mut self, id: LogId) -> usize {
        log_of(&mut self.logs, Some(id)).map_or(0, |log| {
            log.shrink();
            log.len()
        })
    }

    /// The highest number whose event is no longer in a log, and the highest of all.
    pub fn log_range(&self, id: LogId) -> (u32, u32) {
        self.logs.get(&id).map_or((0, 0), Log::range)
    }

    /// Moves a request to another stream, with its tokens that wait and under another name; returns whether the stream
    /// is full now. To a stream that is closed nothing moves.
    pub fn reroute(&mut self, request: RequestId, to: StreamId, request_id: &str) -> bool {
        let Some(track) = self.tracks.get_mut(&request) else {
            return false;
        };
        if !self.streams.contains_key(&to) {
            return false;
        }
        if let Some(from) = self.streams.get_mut(&track.stream) {
            from.withdraw(request, track.num_due_bytes());
        }
        track.stream = to;
        track.request_id = request_id.as_bytes().to_vec();
        let Some(stream) = self.streams.get_mut(&to) else {
            return false;
        };
        for (index, answer) in track.answers.iter().enumerate() {
            if answer.is_due {
                stream.due.push((request, index));
                stream.num_token_bytes += answer.tokens.len();
            }
        }
        stream.fill(self.max_token_bytes)
    }

    /// Sends the events of a log after a number again, under a name; returns whether the stream is full now.
    ///
    /// A live request is moved to the stream afterwards: its later events follow.
    pub fn replay(&mut self, id: LogId, to: StreamId, request_id: &str, after: u32) -> bool {
        let log = self.logs.get_mut(&id);
        let stream = self.streams.get_mut(&to);
        let (Some(log), Some(stream)) = (log, stream) else {
            return false;
        };
        for event in log.after(after) {
            let mut event = event.to_vec();
            wire::put_event_request_id(&mut event, request_id.as_bytes());
            stream.num_token_bytes += event.len();
            stream.put(&event);
        }
        stream.fill(self.max_token_bytes)
    }

    /// Takes the tokens of tracked requests out of a step's events.
    pub fn post(
        &mut self,
        now: Nanos,
        events: &Events,
        scores: Scores<'_>,
        prompt_scores: Scores<'_>,
    ) -> Posted {
        let mut posted = Posted::default();
        for (position, event) in events.list.iter().enumerate() {
            if self.post_prompt(event, events, prompt_scores, &mut posted) {
                continue;
            }
            let Some(output) = Output::of(event, events, scores) else {
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
            let Some(stream) = self.streams.get_mut(&track.stream) else {
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
            if stream.fill(self.max_token_bytes) {
                posted.filled.push(track.stream);
            }
        }
        posted
    }

    /// Everything that waits for a stream, as messages.
    pub fn take(&mut self, id: StreamId) -> Vec<Vec<u8>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Vec::new();
        };
        let mut due = std::mem::take(&mut stream.due);
        for (request, index) in due.drain(..) {
            if let Some(track) = self.tracks.get_mut(&request) {
                let log = log_of(&mut self.logs, track.options.log);
                send(track, index, stream, log);
            }
        }
        stream.due = due;
        stream.num_token_bytes = 0;
        stream.is_full = false;
        std::mem::take(&mut stream.messages)
    }

    /// Whether a stream has nothing to send.
    pub fn is_empty(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(Stream::is_empty)
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
        self.streams.get_mut(&id)
    }
}

fn log_of(logs: &mut HashMap<LogId, Log>, id: Option<LogId>) -> Option<&mut Log> {
    logs.get_mut(&id?)
}

/// An encoded event with its number: protobuf does not mind the order of fields.
fn numbered(event: &[u8], number: u32) -> Vec<u8> {
    let mut numbered = event.to_vec();
    wire::put_event_number(&mut numbered, number);
    numbered
}

/// Makes an event of the tokens that an answer has kept, if there are any.
fn send(track: &mut Track, index: usize, stream: &mut Stream, log: Option<&mut Log>) {
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
    if let Some(log) = log {
        let mut event = Vec::with_capacity(len);
        let head = wire::Head {
            request_id: &[],
            ..head
        };
        wire::encode_tokens_event(&mut event, head, &answer.tokens);
        log.put(number, &event);
    }
    answer.sent();
}
