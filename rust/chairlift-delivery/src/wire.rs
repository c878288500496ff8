//! The protobuf encoding of what is sent once per token; `proto/chairlift/v1/generation.proto` has the numbers.
//!
//! Everything else is encoded by the generated code of the server.

use chairlift_text::answer::CallId;

const VARINT: u8 = 0;
const LENGTH_DELIMITED: u8 = 2;

/// `GenerateResponse.events` and `GenerateOneResponse.events`.
const EVENTS: u8 = tag(1, LENGTH_DELIMITED);

const EVENT_REQUEST_ID: u8 = tag(1, LENGTH_DELIMITED);
const EVENT_INDEX: u8 = tag(2, VARINT);
const EVENT_NUMBER: u8 = tag(3, VARINT);
const EVENT_PROMPT: u8 = tag(6, LENGTH_DELIMITED);
const EVENT_TOKENS: u8 = tag(7, LENGTH_DELIMITED);

const TOKENS_TEXT: u8 = tag(1, LENGTH_DELIMITED);
const TOKENS_TOKEN_IDS: u8 = tag(2, LENGTH_DELIMITED);
const TOKENS_NUM_TOKENS: u8 = tag(3, VARINT);
const TOKENS_LOGPROBS: u8 = tag(4, LENGTH_DELIMITED);
const TOKENS_REASONING: u8 = tag(5, LENGTH_DELIMITED);
const TOKENS_TOOL_CALLS: u8 = tag(6, LENGTH_DELIMITED);

const CALL_POSITION: u8 = tag(1, VARINT);
const CALL_ID: u8 = tag(2, LENGTH_DELIMITED);
const CALL_NAME: u8 = tag(3, LENGTH_DELIMITED);
const CALL_ARGUMENTS: u8 = tag(4, LENGTH_DELIMITED);

const PROMPT_OFFSET: u8 = tag(1, VARINT);
const PROMPT_TEXT: u8 = tag(2, LENGTH_DELIMITED);
const PROMPT_TOKEN_IDS: u8 = tag(3, LENGTH_DELIMITED);
const PROMPT_LOGPROBS: u8 = tag(4, LENGTH_DELIMITED);

const LOGPROBS_LOGPROBS: u8 = tag(1, LENGTH_DELIMITED);
const LOGPROBS_RANKS: u8 = tag(2, LENGTH_DELIMITED);
const LOGPROBS_NUM_CANDIDATES: u8 = tag(3, VARINT);
const LOGPROBS_CANDIDATE_IDS: u8 = tag(4, LENGTH_DELIMITED);
const LOGPROBS_CANDIDATE_LOGPROBS: u8 = tag(5, LENGTH_DELIMITED);

const fn tag(field: u8, wire_type: u8) -> u8 {
    assert!(field < 16, "one byte");
    field << 3 | wire_type
}

/// Tokens of a request, as far as they are encoded already.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) num_tokens: u32,
    pub(crate) text: Vec<u8>,
    pub(crate) reasoning: Vec<u8>,
    pub(crate) calls: Vec<CallPart>,
    /// Varints.
    pub(crate) token_ids: Vec<u8>,
    /// Little-endian floats.
    pub(crate) logprobs: Vec<u8>,
    /// Varints.
    pub(crate) ranks: Vec<u8>,
    /// Of each token.
    pub(crate) num_candidates: u32,
    /// Varints.
    pub(crate) candidate_ids: Vec<u8>,
    /// Little-endian floats.
    pub(crate) candidate_logprobs: Vec<u8>,
}

/// A part of a function call.
#[derive(Debug)]
pub(crate) struct CallPart {
    pub(crate) position: u32,
    /// Of the first part.
    pub(crate) id: Option<CallId>,
    pub(crate) name: String,
    pub(crate) arguments: Vec<u8>,
}

impl CallPart {
    fn id(&self) -> &[u8] {
        self.id.as_ref().map_or(&[], |id| id.as_str().as_bytes())
    }

    fn encoded_len(&self) -> usize {
        number_len(self.position)
            + bytes_len(self.id())
            + bytes_len(self.name.as_bytes())
            + bytes_len(&self.arguments)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, CALL_POSITION, self.position);
        put_bytes(out, CALL_ID, self.id());
        put_bytes(out, CALL_NAME, self.name.as_bytes());
        put_bytes(out, CALL_ARGUMENTS, &self.arguments);
    }
}

impl Tokens {
    pub(crate) fn is_empty(&self) -> bool {
        let has_fields = !self.reasoning.is_empty() || !self.calls.is_empty();
        self.num_tokens == 0 && self.text.is_empty() && !has_fields
    }

    /// Bytes of memory that wait.
    pub(crate) fn len(&self) -> usize {
        let candidates = self.candidate_ids.len() + self.candidate_logprobs.len();
        let calls = self
            .calls
            .iter()
            .map(|part| part.name.len() + part.arguments.len());
        let fields = self.reasoning.len() + calls.sum::<usize>();
        let scores = self.logprobs.len() + self.ranks.len() + candidates;
        self.text.len() + fields + self.token_ids.len() + scores
    }

    pub(crate) fn clear(&mut self) {
        self.num_tokens = 0;
        self.text.clear();
        self.reasoning.clear();
        self.calls.clear();
        self.token_ids.clear();
        self.logprobs.clear();
        self.ranks.clear();
        self.candidate_ids.clear();
        self.candidate_logprobs.clear();
    }

    fn logprobs_len(&self) -> usize {
        bytes_len(&self.logprobs)
            + bytes_len(&self.ranks)
            + number_len(self.num_candidates)
            + bytes_len(&self.candidate_ids)
            + bytes_len(&self.candidate_logprobs)
    }

    fn encoded_len(&self) -> usize {
        bytes_len(&self.text)
            + bytes_len(&self.token_ids)
            + number_len(self.num_tokens)
            + if self.logprobs.is_empty() {
                0
            } else {
                message_len(self.logprobs_len())
            }
            + bytes_len(&self.reasoning)
            + self
                .calls
                .iter()
                .map(|part| message_len(part.encoded_len()))
                .sum::<usize>()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, TOKENS_TEXT, &self.text);
        put_bytes(out, TOKENS_TOKEN_IDS, &self.token_ids);
        put_number(out, TOKENS_NUM_TOKENS, self.num_tokens);
        self.put_logprobs(out, TOKENS_LOGPROBS);
        put_bytes(out, TOKENS_REASONING, &self.reasoning);
        for part in &self.calls {
            out.push(TOKENS_TOOL_CALLS);
            put_varint(out, part.encoded_len() as u64);
            part.encode(out);
        }
    }

    fn put_logprobs(&self, out: &mut Vec<u8>, tag: u8) {
        if !self.logprobs.is_empty() {
            out.push(tag);
            put_varint(out, self.logprobs_len() as u64);
            put_bytes(out, LOGPROBS_LOGPROBS, &self.logprobs);
            put_bytes(out, LOGPROBS_RANKS, &self.ranks);
            put_number(out, LOGPROBS_NUM_CANDIDATES, self.num_candidates);
            put_bytes(out, LOGPROBS_CANDIDATE_IDS, &self.candidate_ids);
            put_bytes(out, LOGPROBS_CANDIDATE_LOGPROBS, &self.candidate_logprobs);
        }
    }
}

/// An event with a piece of a prompt, without its number.
pub(crate) fn prompt_event(request_id: &[u8], offset: usize, tokens: &Tokens) -> Vec<u8> {
    let (mut prompt, mut event) = (Vec::new(), Vec::new());
    put_number(&mut prompt, PROMPT_OFFSET, offset as u32);
    put_bytes(&mut prompt, PROMPT_TEXT, &tokens.text);
    put_bytes(&mut prompt, PROMPT_TOKEN_IDS, &tokens.token_ids);
    tokens.put_logprobs(&mut prompt, PROMPT_LOGPROBS);
    put_bytes(&mut event, EVENT_REQUEST_ID, request_id);
    event.push(EVENT_PROMPT);
    put_varint(&mut event, prompt.len() as u64);
    event.extend_from_slice(&prompt);
    event
}

/// Whose tokens an event has, and its place among the events of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) request_id: &'a [u8],
    pub(crate) index: u32,
    pub(crate) number: u32,
}

/// Bytes that [`put_tokens_event`] appends.
pub(crate) fn tokens_event_len(head: Head<'_>, tokens: &Tokens) -> usize {
    message_len(event_len(head, tokens))
}

fn event_len(head: Head<'_>, tokens: &Tokens) -> usize {
    bytes_len(head.request_id)
        + number_len(head.index)
        + number_len(head.number)
        + message_len(tokens.encoded_len())
}

/// Appends an event with tokens to a message.
pub(crate) fn put_tokens_event(message: &mut Vec<u8>, head: Head<'_>, tokens: &Tokens) {
    message.push(EVENTS);
    put_varint(message, event_len(head, tokens) as u64);
    encode_tokens_event(message, head, tokens);
}

/// Appends the encoding of an `Event` alone.
pub(crate) fn encode_tokens_event(out: &mut Vec<u8>, head: Head<'_>, tokens: &Tokens) {
    put_bytes(out, EVENT_REQUEST_ID, head.request_id);
    put_number(out, EVENT_INDEX, head.index);
    put_number(out, EVENT_NUMBER, head.number);
    out.push(EVENT_TOKENS);
    put_varint(out, tokens.encoded_len() as u64);
    tokens.encode(out);
}

/// Appends its number to an encoded event.
pub(crate) fn put_event_number(event: &mut Vec<u8>, number: u32) {
    put_number(event, EVENT_NUMBER, number);
}

/// Bytes that [`put_event`] appends.
pub(crate) fn encoded_event_len(event: &[u8]) -> usize {
    message_len(event.len())
}

/// Appends an event that is encoded already to a message.
pub(crate) fn put_event(message: &mut Vec<u8>, event: &[u8]) {
    message.push(EVENTS);
    put_varint(message, event.len() as u64);
    message.extend_from_slice(event);
}

/// Appends the label of its request to an encoded event: of two, the last one counts.
pub(crate) fn put_event_request_id(event: &mut Vec<u8>, request_id: &[u8]) {
    put_bytes(event, EVENT_REQUEST_ID, request_id);
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_len(value: u64) -> usize {
    // Seven bits a byte, at least one byte.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Of a message of `len` bytes inside another, tag and length included.
fn message_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// proto3 leaves out what is empty or 0.
fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        0
    } else {
        message_len(bytes.len())
    }
}

fn number_len(value: u32) -> usize {
    if value == 0 {
        0
    } else {
        1 + varint_len(value.into())
    }
}

fn put_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(tag);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

fn put_number(out: &mut Vec<u8>, tag: u8, value: u32) {
    if value != 0 {
        out.push(tag);
        put_varint(out, value.into());
    }
}
