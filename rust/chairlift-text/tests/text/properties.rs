//! Random vocabularies, token sequences and stop strings against decoders and searches of the whole text.
use crate::deltas::{self, run};
use chairlift_text::{TextOptions, TokenTable};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::cmp::Reverse;

const FFFD: &str = "\u{fffd}";

#[derive(Clone, Debug)]
struct Vocabulary {
    tokens: Vec<Vec<u8>>,
    special: Vec<u32>,
    byte_fallback: Vec<u32>,
    strip_first_space: bool,
}

impl Vocabulary {
    fn table(&self) -> TokenTable {
        TokenTable::new(
            &self.tokens,
            &self.special,
            &self.byte_fallback,
            self.strip_first_space,
        )
    }

    /// The whole decode, as the decoders of `tokenizers` do it.
    fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> String {
        let contributes = |id: &usize| {
            let special = self.special.contains(&(*id as u32));
            !(special && skip_special_tokens || self.tokens[*id].is_empty())
        };
        let is_byte = |id: usize| self.byte_fallback.contains(&(id as u32));
        let ids: Vec<usize> = ids
            .iter()
            .filter_map(|&id| usize::try_from(id).ok())
            .filter(|&id| id < self.tokens.len())
            .filter(contributes)
            .collect();
        let mut text = String::new();
        for group in ids.chunk_by(|&a, &b| is_byte(a) == is_byte(b)) {
            let bytes: Vec<u8> = group
                .iter()
                .flat_map(|&id| self.tokens[id].clone())
                .collect();
            match String::from_utf8(bytes) {
                Ok(valid) => text += &valid,
                Err(error) if is_byte(group[0]) => text += &FFFD.repeat(error.as_bytes().len()),
                Err(error) => text += &String::from_utf8_lossy(error.as_bytes()),
            }
        }
        match text.strip_prefix(' ') {
            Some(rest) if self.strip_first_space => rest.to_string(),
            _ => text,
        }
    }
}

/// Whole characters, parts of them that meet again, and garbage.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let characters = ["a", "b", " ", "é", "中", "🚡", "\u{7ff}", "\u{ffff}"];
    let cut = |(character, from, len): (&str, usize, usize)| {
        character.bytes().cycle().skip(from).take(len).collect()
    };
    prop_oneof![
        4 => select(characters.to_vec()).prop_map(|character| character.as_bytes().to_vec()),
        3 => (select(characters[3..].to_vec()), 0..4_usize, 1..4_usize).prop_map(cut),
        1 => vec(any::<u8>(), 0..4),
    ]
}

fn vocabulary() -> impl Strategy<Value = Vocabulary> {
    let bytes = vec(any::<u8>(), 0..16);
    (
        vec(token(), 1..24),
        bytes,
        vec(0..40_u32, 0..4),
        any::<bool>(),
    )
        .prop_map(|(mut tokens, bytes, special, strip_first_space)| {
            let first = tokens.len() as u32;
            tokens.extend("a é中🚡".bytes().chain(bytes).map(|byte| vec![byte]));
            Vocabulary {
                byte_fallback: (first..tokens.len() as u32).collect(),
                tokens,
                special,
                strip_first_space,
            }
        })
}

fn ids() -> impl Strategy<Value = Vec<i32>> {
    vec(-1..50_i32, 0..40)
}

fn stops() -> impl Strategy<Value = Vec<String>> {
    vec("[ab é中\u{fffd}]{0,4}", 1..4)
}

fn options(stop: &[String]) -> TextOptions {
    deltas::options(&stop.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The match that the documentation promises, by trying every end after `past`: (stop string, end).
fn find_stop(text: &str, stops: &[String], past: usize) -> Option<(usize, usize)> {
    (past + 1..=text.len()).find_map(|end| {
        (0..stops.len())
            .filter(|&i| !stops[i].is_empty())
            .filter(|&i| text.as_bytes()[..end].ends_with(stops[i].as_bytes()))
            .max_by_key(|&i| (stops[i].len(), Reverse(i)))
            .map(|i| (i, end))
    })
}

/// Length of the longest end of `text` that begins a stop string and is not all of it.
fn possible_start(text: &str, stops: &[String]) -> usize {
    stops
        .iter()
        .flat_map(|stop| (0..stop.len()).map(|len| &stop.as_bytes()[..len]))
        .filter(|start| text.as_bytes().ends_with(start))
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn deltas_concatenate_to_the_whole_decode(
        vocabulary in vocabulary(), ids in ids(), skip_special_tokens in any::<bool>(),
    ) {
        let options = TextOptions { skip_special_tokens, ..options(&[]) };
        let (deltas, _) = run(&vocabulary.table(), options, &ids, 0);
        prop_assert_eq!(deltas.concat(), vocabulary.decode(&ids, skip_special_tokens));
    }

    #[test]
    fn the_match_is_where_a_search_of_the_whole_text_finds_it(
        vocabulary in vocabulary(), ids in ids(), stop in stops(), min_tokens in 0..8_usize,
        include_stop in any::<bool>(), detokenize in any::<bool>(),
    ) {
        let table = vocabulary.table();
        let (plain, _) = run(&table, options(&[]), &ids, 0);
        let whole = plain.concat();
        // What the tokens before the min_tokens-th decide is past; with too few tokens, all is.
        let num_past = if ids.len() < min_tokens { plain.len() } else { min_tokens.saturating_sub(1) };
        let expected = find_stop(&whole, &stop, plain[..num_past].concat().len());
        let end = match expected {
            None => whole.len(),
            Some((_, end)) if include_stop => end,
            Some((i, end)) => end - stop[i].len(),
        };

        let options = TextOptions { include_stop, detokenize, ..options(&stop) };
        let (deltas, stopped) = run(&table, options, &ids, min_tokens);
        prop_assert_eq!(deltas.concat(), if detokenize { &whole[..end] } else { "" });
        prop_assert_eq!(stopped, expected.map(|(i, _)| i));
    }

    #[test]
    fn one_stop_string_cuts_where_str_find_does(
        vocabulary in vocabulary(), ids in ids(), stop in "[ab é]{1,4}",
    ) {
        let table = vocabulary.table();
        let whole = run(&table, options(&[]), &ids, 0).0.concat();
        let cut = run(&table, options(std::slice::from_ref(&stop)), &ids, 0).0.concat();
        prop_assert_eq!(cut.as_str(), &whole[..whole.find(&stop).unwrap_or(whole.len())]);
    }

    #[test]
    fn exactly_the_possible_start_of_a_stop_string_is_held_back(
        vocabulary in vocabulary(), ids in ids(), stop in stops(),
    ) {
        let table = vocabulary.table();
        let (plain, _) = run(&table, options(&[]), &ids, usize::MAX);
        let (deltas, _) = run(&table, options(&stop), &ids, usize::MAX);
        let (mut decided, mut emitted) = (String::new(), String::new());
        for (plain, delta) in plain.iter().zip(&deltas).take(ids.len()) {
            decided += plain;
            emitted += delta;
            prop_assert_eq!(decided.len() - emitted.len(), possible_start(&decided, &stop));
        }
    }
}
