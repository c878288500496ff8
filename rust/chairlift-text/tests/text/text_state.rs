//! Facts about the text of an answer: what comes out with which token, and where it is cut.
use crate::deltas::{options, run};
use chairlift_text::{TextOptions, TextState, TokenTable};

const FFFD: &str = "\u{fffd}";

/// A table whose ids are the given strings, in order.
fn table(tokens: &[&[u8]]) -> TokenTable {
    let tokens: Vec<_> = tokens.iter().map(|t| t.to_vec()).collect();
    TokenTable::new(&tokens, &[], &[], false)
}

/// Ids 0..=255 are single bytes that join into characters.
fn joined_bytes() -> TokenTable {
    let tokens: Vec<_> = (0..=255).map(|b| vec![b]).collect();
    TokenTable::new(&tokens, &[], &[], false)
}

/// Ids 0..=255 are byte-fallback tokens; 256 is "a".
fn fallback_bytes() -> TokenTable {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
    tokens.push(b"a".to_vec());
    TokenTable::new(&tokens, &[], &(0..=255).collect::<Vec<_>>(), false)
}

fn deltas(table: &TokenTable, stop: &[&str], tokens: &[i32]) -> Vec<String> {
    run(table, options(stop), tokens, 0).0
}

fn text(table: &TokenTable, tokens: &[i32]) -> String {
    deltas(table, &[], tokens).concat()
}

fn text_with_special(table: &TokenTable, tokens: &[i32]) -> String {
    let options = TextOptions {
        skip_special_tokens: false,
        ..options(&[])
    };
    run(table, options, tokens, 0).0.concat()
}

fn bytes(text: impl AsRef<[u8]>) -> Vec<i32> {
    text.as_ref().iter().map(|&b| i32::from(b)).collect()
}

#[test]
fn a_character_split_over_tokens_comes_out_whole_with_its_last_byte() {
    let deltas = deltas(&joined_bytes(), &[], &bytes("é🚡!"));
    assert_eq!(deltas, ["", "é", "", "", "", "🚡", "!", ""]);
}

#[test]
fn an_invalid_byte_becomes_one_replacement_character() {
    let deltas = deltas(&joined_bytes(), &[], &bytes(b"\xffa"));
    assert_eq!(deltas, [FFFD, "a", ""]);
}

#[test]
fn an_incomplete_character_is_replaced_at_the_end() {
    let deltas = deltas(&joined_bytes(), &[], &bytes(b"a\xf0\x9f"));
    assert_eq!(deltas, ["a", "", "", FFFD]);
}

#[test]
fn a_valid_byte_run_comes_out_when_another_token_ends_it() {
    let tokens = [bytes("中"), vec![256]].concat();
    let deltas = deltas(&fallback_bytes(), &[], &tokens);
    assert_eq!(deltas, ["", "", "", "中a", ""]);
}

#[test]
fn a_valid_byte_run_comes_out_at_the_end() {
    assert_eq!(text(&fallback_bytes(), &bytes("中!")), "中!");
}

#[test]
fn an_invalid_byte_run_is_replaced_byte_for_byte_once_it_is_known_to_be_invalid() {
    let deltas = deltas(&fallback_bytes(), &[], &bytes(b"\xe4\xb8\xad\xff!"));
    assert_eq!(deltas, ["", "", "", &FFFD.repeat(4), FFFD, ""]);
}

#[test]
fn an_incomplete_byte_run_is_replaced_byte_for_byte() {
    let tokens = [bytes(b"z\xe4\xb8"), vec![256]].concat();
    assert_eq!(text(&fallback_bytes(), &tokens), FFFD.repeat(3) + "a");
}

#[test]
fn special_tokens_are_skipped_only_when_asked_and_then_split_no_character() {
    let tokens = vec![b"<s>".to_vec(), vec![0xc3], vec![0xa9]];
    let table = TokenTable::new(&tokens, &[0], &[], false);
    assert_eq!(text(&table, &[0, 1, 0, 2]), "é");
    assert_eq!(text_with_special(&table, &[0, 1, 2, 0]), "<s>é<s>");
}

#[test]
fn ids_outside_the_table_and_ids_without_bytes_contribute_nothing() {
    let table = table(&[b"a", b"", b"\xc3", b"\xa9"]);
    let tokens = [0, 1, 4, -1, i32::MAX, i32::MIN, 2, 1, 9, 3];
    assert_eq!(text(&table, &tokens), "aé");
}

#[test]
fn one_leading_space_of_the_whole_text_is_stripped() {
    let tokens = vec![b"<s>".into(), b"  a".into(), b" b".into(), b" ".into()];
    let table = TokenTable::new(&tokens, &[0], &[3], true);
    assert_eq!(text(&table, &[0, 1, 2]), " a b");
    assert_eq!(text(&table, &[2, 2]), "b b");
    assert_eq!(text(&table, &[3, 2]), " b");
    assert_eq!(text_with_special(&table, &[0, 2]), "<s> b");
}

#[test]
fn the_first_token_that_contributes_may_have_other_bytes() {
    let table =
        table(&[b" a b", b" ", b""]).with_first_tokens(&[b"ab".into(), b"".into(), b"".into()]);
    assert_eq!(text(&table, &[2, 0, 0]), "ab a b");
    assert_eq!(text(&table, &[1, 0]), " a b");
}

#[test]
fn without_stop_strings_nothing_decided_is_held_back() {
    let deltas = deltas(&joined_bytes(), &[], &bytes("abc"));
    assert_eq!(deltas, ["a", "b", "c", ""]);
}

#[test]
fn only_the_possible_start_of_a_stop_string_is_held_back() {
    let (deltas, stop) = run(&joined_bytes(), options(&["aab"]), &bytes("caaac"), 0);
    assert_eq!(deltas, ["c", "", "", "a", "aac", ""]);
    assert_eq!(stop, None);
}

#[test]
fn a_stop_string_is_found_at_every_split_into_three_tokens() {
    let whole = "one 🚡 END two";
    for include_stop in [false, true] {
        let expected = if include_stop { "one 🚡 END" } else { "one " };
        let options = TextOptions {
            include_stop,
            ..options(&["🚡 END"])
        };
        for i in 0..=whole.len() {
            for j in i..=whole.len() {
                let whole = whole.as_bytes();
                let table = table(&[&whole[..i], &whole[i..j], &whole[j..]]);
                let (deltas, stop) = run(&table, options.clone(), &[0, 1, 2], 0);
                assert_eq!((deltas.concat().as_str(), stop), (expected, Some(0)));
            }
        }
    }
}

#[test]
fn a_stop_string_that_repeats_itself_is_found_where_str_find_finds_it() {
    let joined_bytes = joined_bytes();
    let words = |len: usize| (0..1 << len).map(move |bits| format!("{bits:0len$b}"));
    let all = (1..=5).flat_map(|len| {
        words(len).flat_map(move |stop| words(9).map(move |whole| (stop.clone(), whole)))
    });
    // Here a failed match goes on in the middle of the stop string.
    let long = [("0010000".to_owned(), "00100010000".to_owned())];
    for (stop, whole) in all.chain(long) {
        let expected = &whole[..whole.find(&stop).unwrap_or(whole.len())];
        let deltas = deltas(&joined_bytes, &[&stop], &bytes(&whole));
        assert_eq!(deltas.concat(), expected, "{stop} in {whole}");
    }
}

#[test]
fn the_stop_string_that_ends_first_wins_over_the_one_that_begins_first() {
    let (deltas, stop) = run(&table(&[b"xabcdy"]), options(&["abcd", "bc"]), &[0], 0);
    assert_eq!((deltas.concat().as_str(), stop), ("xa", Some(1)));
}

#[test]
fn of_stop_strings_that_end_together_the_longest_wins_and_then_the_first() {
    let options = options(&["c", "bc", "bc"]);
    let (deltas, stop) = run(&table(&[b"abcd"]), options, &[0], 0);
    assert_eq!((deltas.concat().as_str(), stop), ("a", Some(1)));
}

#[test]
fn an_empty_stop_string_never_matches() {
    let table = table(&[b"ab"]);
    assert_eq!(deltas(&table, &["", "b"], &[0]), ["a"]);
    assert_eq!(deltas(&table, &[""], &[0]), ["ab", ""]);
}

#[test]
fn nothing_follows_a_stop_string() {
    let table = table(&[b"a stop b\xc3", b"c"]);
    let mut state = TextState::new(options(&["stop", "c"]));
    let mut out = String::new();
    assert_eq!(state.push(&table, 0, true, &mut out), Some(0));
    assert_eq!(state.stop(0), "stop");
    assert_eq!(state.push(&table, 1, true, &mut out), None);
    assert_eq!(state.finish(&table, &mut out), None);
    assert_eq!(out, "a ");
}

#[test]
fn a_stop_string_that_is_complete_before_min_tokens_is_text() {
    let table = table(&[b"stop", b" more", b" stop"]);
    let (deltas, stop) = run(&table, options(&["stop"]), &[0, 1, 2], 2);
    assert_eq!((deltas.concat().as_str(), stop), ("stop more ", Some(0)));
}

#[test]
fn a_stop_string_that_only_begins_before_min_tokens_ends_the_answer() {
    let table = table(&[b"a st", b"op b"]);
    let (deltas, stop) = run(&table, options(&["stop"]), &[0, 1], 2);
    assert_eq!(deltas, ["a ", ""]);
    assert_eq!(stop, Some(0));
}

#[test]
fn a_stop_string_that_is_passed_over_may_overlap_the_one_that_counts() {
    let table = table(&[b"xaa", b"ab"]);
    let (deltas, stop) = run(&table, options(&["aa"]), &[0, 1], 2);
    assert_eq!(deltas, ["xa", ""]);
    assert_eq!(stop, Some(0));
}

#[test]
fn a_stop_string_in_a_byte_run_ends_the_answer_when_the_run_ends() {
    let (table, newline) = (fallback_bytes(), i32::from(b'\n'));
    for tokens in [&[256, newline, 256][..], &[256, newline]] {
        let (deltas, stop) = run(&table, options(&["\n"]), tokens, 0);
        assert_eq!(deltas, ["a", "", ""]);
        assert_eq!(stop, Some(0));
    }
    // Here the answer ends before min_tokens.
    let (deltas, stop) = run(&table, options(&["\n"]), &[256, newline], 3);
    assert_eq!((deltas.concat().as_str(), stop), ("a\n", None));
}

#[test]
fn stop_strings_work_without_text() {
    let silent = TextOptions {
        detokenize: false,
        ..options(&["🚡!"])
    };
    let (deltas, stop) = run(&joined_bytes(), silent, &bytes("a🚡!b"), 0);
    assert_eq!(deltas.concat(), "");
    assert_eq!((deltas.len(), stop), (6, Some(0)));
}

#[test]
fn a_stop_string_that_stays_in_the_text_is_not_held_back() {
    let keep = TextOptions {
        include_stop: true,
        ..options(&["abc"])
    };
    let (deltas, stop) = run(&joined_bytes(), keep, &bytes("abcd"), 0);
    assert_eq!(deltas, ["a", "b", "c"]);
    assert_eq!(stop, Some(0));
}
