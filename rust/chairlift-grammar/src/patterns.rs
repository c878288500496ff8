//! What the patterns of a schema's keys match, where only names that are known may be left.

use std::panic::AssertUnwindSafe;

use llguidance::{
    derivre::{ExprRef, Regex, RegexAst, RegexBuilder},
    panic_utils, regex_to_lark,
};

use crate::{error::CompileError, grammar::message};

/// Work of one question.
const FUEL: u64 = 10_000;

/// What patterns match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Of each pattern the names that it matches, by position.
    pub names: Vec<Vec<usize>>,
    /// Of each pattern whether it matches no other text.
    pub is_complete: Vec<bool>,
}

/// Finds which of some names each pattern matches, and whether it matches anything else.
///
/// # Errors
/// If a pattern is none, or has too many states to tell.
pub fn matched_names(patterns: &[String], names: &[String]) -> Result<Matched, CompileError> {
    caught(|| {
        let mut found = Matched::default();
        for pattern in patterns {
            let mut builder = RegexBuilder::new();
            let expr = search(&mut builder, pattern)?;
            let mut regex = builder.to_regex_limited(expr, FUEL)?;
            let matching: Vec<_> = (0..names.len())
                .filter(|&i| regex.is_match(&names[i]))
                .collect();
            let known = matching
                .iter()
                .map(|&i| RegexAst::Literal(names[i].clone()))
                .collect();
            let rest = RegexAst::And(vec![
                RegexAst::ExprRef(expr),
                RegexAst::Not(Box::new(RegexAst::Or(known))),
            ]);
            found
                .is_complete
                .push(regex_of(builder, &rest)?.always_empty());
            found.names.push(matching);
        }
        Ok(found)
    })
}

/// Whether each text is one of the names or matched by one of the patterns.
///
/// # Errors
/// As [`matched_names`].
pub fn match_all(patterns: &[String], names: &[String]) -> Result<bool, CompileError> {
    caught(|| {
        let mut builder = RegexBuilder::new();
        let mut known: Vec<_> = names.iter().cloned().map(RegexAst::Literal).collect();
        for pattern in patterns {
            known.push(RegexAst::ExprRef(search(&mut builder, pattern)?));
        }
        // What is left must be text: without this it is what is no UTF-8.
        let rest = RegexAst::And(vec![
            RegexAst::Regex("(?s:.*)".into()),
            RegexAst::Not(Box::new(RegexAst::Or(known))),
        ]);
        Ok(regex_of(builder, &rest)?.always_empty())
    })
}

fn search(builder: &mut RegexBuilder, pattern: &str) -> anyhow::Result<ExprRef> {
    // As the parser reads patterns of a schema.
    builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw"))
}

fn regex_of(mut builder: RegexBuilder, ast: &RegexAst) -> anyhow::Result<Regex> {
    let expr = builder.mk(ast)?;
    builder.to_regex_limited(expr, FUEL)
}

fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, CompileError> {
    let found = panic_utils::catch_unwind(AssertUnwindSafe(work));
    found.map_err(|error| CompileError(message(&format!("{error:#}"))))
}

#[cfg(test)]
mod tests {
    use super::{match_all, matched_names};

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_pattern_of_few_texts_is_told_from_one_of_many() {
        let names = texts(&["a", "b", "ab"]);
        let patterns = texts(&["^a$", "^(a|b)$", "^a", "^c$", "[^\\s\\S]"]);
        let matched = matched_names(&patterns, &names).expect("patterns");
        let expected: [&[usize]; 5] = [&[0], &[0, 1], &[0, 2], &[], &[]];
        assert_eq!(matched.names, expected);
        assert_eq!(matched.is_complete, [true, true, false, false, true]);
    }

    #[test]
    fn patterns_may_leave_no_text() {
        assert_eq!(match_all(&texts(&["^a", "^[^a]"]), &texts(&[""])), Ok(true));
        assert_eq!(match_all(&texts(&["^a", "^[^a]"]), &[]), Ok(false));
        assert_eq!(match_all(&texts(&[""]), &[]), Ok(true));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert!(matched_names(&texts(&["a("]), &[]).is_err());
        assert!(match_all(&texts(&["[b"]), &[]).is_err());
    }
}
