//! Answers that are pushed token by token.

use chairlift_text::{TextOptions, TextState, TokenTable};

/// All text, up to one of these stop strings.
pub(crate) fn options(stop: &[&str]) -> TextOptions {
    TextOptions {
        detokenize: true,
        skip_special_tokens: true,
        stop: stop.iter().map(ToString::to_string).collect(),
        stop_regex: None,
        include_stop: false,
    }
}

/// The delta of each token and then of the end; and which stop string ended the answer.
pub(crate) fn run(
    table: &TokenTable,
    options: TextOptions,
    tokens: &[i32],
    min_tokens: usize,
) -> (Vec<String>, Option<usize>) {
    let mut state = TextState::new(options);
    let mut deltas = Vec::new();
    for (i, &token) in tokens.iter().enumerate() {
        let mut delta = String::new();
        let stop = state.push(table, token, i + 1 >= min_tokens, &mut delta);
        deltas.push(delta);
        if stop.is_some() {
            return (deltas, stop);
        }
    }
    let mut delta = String::new();
    let stop = state.finish(table, &mut delta);
    deltas.push(delta);
    (deltas, stop)
}
