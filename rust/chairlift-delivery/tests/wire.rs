//! The lengths that precede a message are those of what follows: read back by a plain reader of protobuf.

use chairlift_core::{
    RequestId,
    events::{Event, EventKind, Events},
};
use chairlift_delivery::{Histogram, LogId, Options, Outboxes, PromptDelivery, Scores, StreamId};
use chairlift_text::answer::{CallId, Content, Field as Part};
use proptest::prelude::*;

const VARINT: u64 = 0;

/// A field: its number, and its number or bytes.
type Field = (u64, Result<u64, Vec<u8>>);

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn fields(mut bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = varint(&mut bytes);
        if tag & 7 == VARINT {
            fields.push((tag >> 3, Ok(value)));
        } else {
            let (inside, rest) = bytes.split_at(value as usize);
            fields.push((tag >> 3, Err(inside.to_vec())));
            bytes = rest;
        }
    }
    fields
}

fn bytes(fields: &[Field], number: u64) -> Vec<u8> {
    let field = fields.iter().find(|field| field.0 == number);
    field.map_or_else(Vec::new, |field| field.1.clone().expect_err("bytes"))
}

fn number(fields: &[Field], number: u64) -> u64 {
    let field = fields.iter().find(|field| field.0 == number);
    field.map_or(0, |field| field.1.clone().expect("a number"))
}

fn outboxes() -> Outboxes {
    Outboxes::new(
        1 << 16,
        Histogram::new(vec![1.0, 2.0]),
        Histogram::new(vec![0.5]),
    )
}

fn step(text: &str, tokens: &[i32]) -> Events {
    Events {
        ends: Vec::new(),
        list: vec![Event {
            request: RequestId(5),
            index: 0,
            kind: EventKind::Tokens {
                fields: 0..3,
                text: 0..text.len(),
                tokens: 0..tokens.len(),
                sample_slot: 0,
            },
        }],
        text: text.to_owned(),
        fields: vec![
            Part {
                content: Content::Reasoning,
                text: 0..text.len(),
            },
            Part {
                content: Content::Call {
                    position: 3,
                    id: CallId::new(1, 3),
                },
                text: text.len()..text.len() + 1,
            },
            Part {
                content: Content::Arguments { position: 3 },
                text: 0..text.len(),
            },
        ],
        field_text: format!("{text}f"),
        tokens: tokens.to_vec(),
    }
}

const OPTIONS: Options = Options {
    text: true,
    token_ids: true,
    logprobs: true,
    num_candidates: 2,
    prompt: PromptDelivery {
        echo: true,
        logprobs: true,
        num_candidates: 1,
    },
    interval: 1,
    group: 0,
    num_answers: 1,
    log: None,
};

proptest! {
    #[test]
    fn a_message_reads_back_as_what_was_posted(
        label in "[ -~]{0,128}",
        text in "\\PC{0,300}",
        tokens in proptest::collection::vec(0..i32::MAX, 1..300),
    ) {
        let mut outboxes = outboxes();
        let stream = outboxes.open();
        outboxes.track(RequestId(5), stream, &label, b"", OPTIONS, 0);
        let logprobs: Vec<f32> = tokens.iter().map(|&token| -(token as f32)).collect();
        // The step reports three candidates of each token, and the request asks for two.
        let ids: Vec<i32> = tokens.iter().flat_map(|&token| [token, 1, 2]).collect();
        let candidates: Vec<f32> = logprobs.iter().flat_map(|&logprob| [logprob, 0.5, 0.25]).collect();
        let scores = Scores {
            logprobs: &logprobs,
            ranks: &tokens,
            stride: 3,
            candidate_ids: &ids,
            candidate_logprobs: &candidates,
        };
        outboxes.post(0, &step(&text, &tokens), scores, Scores::default());
        let messages = outboxes.take(stream);
        let [message] = &messages[..] else { panic!("one message") };
        let events = fields(message);
        prop_assert_eq!(events.len(), 2);
        let event = fields(events[1].1.as_ref().expect_err("an event"));
        prop_assert_eq!(bytes(&event, 1), label.as_bytes());
        prop_assert_eq!(number(&event, 3), 2);
        let output = fields(&bytes(&event, 7));
        prop_assert_eq!(bytes(&output, 1), text.as_bytes());
        prop_assert_eq!(number(&output, 3), tokens.len() as u64);
        prop_assert_eq!(bytes(&output, 5), text.as_bytes());
        let call = bytes(&output, 6);
        let call = fields(&call);
        prop_assert_eq!(number(&call, 1), 3);
        let id = CallId::new(1, 3);
        prop_assert_eq!(bytes(&call, 2), id.as_str().as_bytes());
        prop_assert_eq!(bytes(&call, 3), b"f");
        prop_assert_eq!(bytes(&call, 4), text.as_bytes());
        let packed = |field: Vec<u8>| {
            let mut rest = &field[..];
            let mut values = Vec::new();
            while !rest.is_empty() {
                values.push(varint(&mut rest) as i32);
            }
            values
        };
        prop_assert_eq!(packed(bytes(&output, 2)), &tokens[..]);
        let scores = fields(&bytes(&output, 4));
        let floats: Vec<u8> = logprobs.iter().flat_map(|value| value.to_le_bytes()).collect();
        prop_assert_eq!(bytes(&scores, 1), floats);
        prop_assert_eq!(packed(bytes(&scores, 2)), &tokens[..]);
        prop_assert_eq!(number(&scores, 3), 2);
        let firsts: Vec<_> = tokens.iter().flat_map(|&token| [token, 1]).collect();
        prop_assert_eq!(packed(bytes(&scores, 4)), firsts);
        let values = logprobs.iter().flat_map(|&logprob| [logprob, 0.5]);
        let floats: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        prop_assert_eq!(bytes(&scores, 5), floats);
    }
}

#[test]
fn times_are_counted_by_token() {
    let mut outboxes = outboxes();
    let stream = outboxes.open();
    let second = 1_000_000_000;
    outboxes.track(RequestId(5), stream, "a", b"", OPTIONS, 0);
    let first = outboxes.post(
        3 * second / 2,
        &step("x", &[1]),
        Scores::default(),
        Scores::default(),
    );
    assert_eq!(first.started, [RequestId(5)]);
    let later = outboxes.post(
        4 * second,
        &step("xyz", &[1, 2, 3, 4, 5]),
        Scores::default(),
        Scores::default(),
    );
    assert_eq!(later.started, []);
    assert_eq!(outboxes.num_tokens(), [6]);
    assert_eq!(outboxes.first_token().counts(), [0, 1, 0]);
    // Five tokens after 2.5 s are half a second each.
    assert_eq!(outboxes.inter_token().counts(), [5, 0]);
    assert!((outboxes.inter_token().sum() - 2.5).abs() < 1e-9);
}

#[test]
fn a_closed_stream_is_empty_and_its_number_is_no_other_ones() {
    let mut outboxes = outboxes();
    let stream = outboxes.open();
    outboxes.track(RequestId(5), stream, "a", b"", OPTIONS, 0);
    outboxes.close(stream);
    assert_eq!(outboxes.num_tracks(), 0);
    assert_eq!(
        outboxes
            .post(0, &step("x", &[1]), Scores::default(), Scores::default())
            .rest,
        [0]
    );
    assert!(!outboxes.track(RequestId(6), stream, "b", b"", OPTIONS, 0));
    assert_ne!(outboxes.open(), stream);
    assert!(outboxes.is_empty(stream));
}

/// The events in the messages of a stream: request id, number, text and kind.
fn taken(outboxes: &mut Outboxes, stream: StreamId) -> Vec<(String, u64, String)> {
    let messages = outboxes.take(stream);
    let events = messages.iter().flat_map(|message| fields(message));
    let read = events.map(|(_, event)| {
        let event = fields(&event.expect_err("an event"));
        // Of a field that comes twice the last one counts.
        let label = event.iter().rfind(|field| field.0 == 1);
        let label = label.map_or_else(Vec::new, |field| field.1.clone().expect_err("bytes"));
        let text = bytes(&fields(&bytes(&event, 7)), 1);
        let string = |bytes| String::from_utf8(bytes).expect("text");
        (string(label), number(&event, 3), string(text))
    });
    read.collect()
}

fn event(label: &str, number: u64, text: &str) -> (String, u64, String) {
    (label.to_owned(), number, text.to_owned())
}

fn logged(outboxes: &mut Outboxes, max_bytes: usize) -> (StreamId, LogId) {
    let stream = outboxes.open();
    let log = outboxes.open_log(max_bytes);
    let options = Options {
        log: Some(log),
        ..OPTIONS
    };
    outboxes.track(RequestId(5), stream, "old", b"\x0a\x03old", options, 0);
    (stream, log)
}

#[test]
fn a_request_that_moves_sends_what_its_client_has_not_got_and_then_what_waits() {
    let mut outboxes = outboxes();
    let (old, log) = logged(&mut outboxes, 1 << 16);
    for text in ["a", "b", "c"] {
        outboxes.post(0, &step(text, &[1]), Scores::default(), Scores::default());
        outboxes.take(old);
    }
    // Two tokens that no stream has taken.
    outboxes.post(0, &step("d", &[1]), Scores::default(), Scores::default());
    outboxes.post(0, &step("e", &[1]), Scores::default(), Scores::default());
    let new = outboxes.open();
    assert!(!outboxes.replay(log, new, "new", 2));
    assert!(!outboxes.reroute(RequestId(5), new, "new"));
    outboxes.end(RequestId(5), 0, true, Some(b""), false);
    let rest = [
        event("new", 3, "b"),
        event("new", 4, "c"),
        event("new", 6, "de"),
    ];
    let sent = taken(&mut outboxes, new);
    assert_eq!(sent[..3], rest);
    assert_eq!(sent[3].1, 7);
    assert!(outboxes.is_empty(old));
    assert_eq!(outboxes.num_tracks(), 0);
    // After its end the same again, all of it this time.
    assert!(!outboxes.replay(log, new, "again", 0));
    let sent = taken(&mut outboxes, new);
    let numbers: Vec<_> = sent.iter().map(|event| event.1).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 6, 7]);
    assert!(sent.iter().all(|event| event.0 == "again" || event.1 == 7));
    outboxes.close_log(log);
    assert!(!outboxes.replay(log, new, "gone", 0));
    assert!(outboxes.is_empty(new));
}

#[test]
fn a_log_keeps_the_last_events_within_its_bound() {
    let mut outboxes = outboxes();
    let (stream, log) = logged(&mut outboxes, 1000);
    for _ in 0..500 {
        outboxes.post(
            0,
            &step("ten bytes.", &[1]),
            Scores::default(),
            Scores::default(),
        );
        outboxes.take(stream);
    }
    let (dropped, last) = outboxes.log_range(log);
    assert_eq!(last, 501);
    assert!(dropped > 400 && dropped < 501);
    assert!(outboxes.shrink_log(log) <= 1000);
    outboxes.replay(log, stream, "old", dropped);
    let sent = taken(&mut outboxes, stream);
    assert_eq!(sent.len() as u32, last - dropped);
    assert_eq!(sent[0].1, u64::from(dropped) + 1);
}

#[test]
fn an_end_that_is_only_logged_is_sent_to_the_next_stream_alone() {
    let mut outboxes = outboxes();
    let (old, log) = logged(&mut outboxes, 1 << 16);
    outboxes.take(old);
    outboxes.end(RequestId(5), 0, true, Some(b""), true);
    assert!(outboxes.is_empty(old));
    outboxes.replay(log, old, "x", 1);
    assert_eq!(taken(&mut outboxes, old), [event("x", 2, "")]);
}

#[test]
fn events_that_are_sent_again_fill_a_stream() {
    let mut outboxes = outboxes();
    let (old, log) = logged(&mut outboxes, 1 << 20);
    // Its events have the text three times: as it is, as reasoning and as arguments.
    let long = "x".repeat(1 << 13);
    for _ in 0..3 {
        outboxes.post(0, &step(&long, &[1]), Scores::default(), Scores::default());
        outboxes.take(old);
    }
    let new = outboxes.open();
    assert!(outboxes.replay(log, new, "new", 0));
    outboxes.take(new);
    assert!(!outboxes.replay(log, new, "new", 3));
}

#[test]
fn a_request_that_moves_to_a_closed_stream_stays_where_it_is() {
    let mut outboxes = outboxes();
    let (old, _) = logged(&mut outboxes, 1 << 16);
    outboxes.take(old);
    let closed = outboxes.open();
    outboxes.close(closed);
    for gone in [closed, StreamId(99)] {
        assert!(!outboxes.reroute(RequestId(5), gone, "new"));
        outboxes.post(0, &step("a", &[1]), Scores::default(), Scores::default());
        let sent = taken(&mut outboxes, old);
        let texts: Vec<_> = sent
            .iter()
            .map(|(id, _, text)| (&id[..], &text[..]))
            .collect();
        assert_eq!(texts, [("old", "a")]);
    }
    // A later stream has another number, and none of its requests.
    assert_ne!(outboxes.open(), closed);
    outboxes.post(0, &step("b", &[1]), Scores::default(), Scores::default());
    assert!(outboxes.is_empty(closed));
}

#[test]
fn a_request_that_is_accepted_after_its_stream_was_closed_reaches_no_other_stream() {
    let mut outboxes = outboxes();
    let closed = outboxes.open();
    outboxes.close(closed);
    let next = outboxes.open();
    let options = OPTIONS;
    assert!(!outboxes.track(RequestId(5), closed, "a", b"", options, 0));
    outboxes.put(closed, b"");
    outboxes.post(0, &step("a", &[1]), Scores::default(), Scores::default());
    assert!(outboxes.is_empty(next) && outboxes.take(next).is_empty());
}
