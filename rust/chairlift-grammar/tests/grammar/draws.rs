//! Steps of many sequences with drafts, wrong drafts, failed steps, ends and new sequences, drawn from a seed: each draw's mask is
//! that of a matcher that has seen nothing but the tokens before it. The check is proved by masks that are wrong on purpose.

use std::sync::Arc;

use crate::world::{END, Random, allowed, compile, mask_behind, num_words, schema};
use chairlift_draws::mask_line;
use chairlift_grammar::{
    Constraints, Draw, Grammar, Masks, Matcher, Source, constraints, matcher::Outcome,
};

const NUM_SLOTS: usize = 6;
const NUM_PROMPT: usize = 3;
const NUM_STEPS: usize = 60;

/// Runs a function on two threads at most.
fn two_threads(num_threads: usize, function: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        for _ in 1..num_threads.min(2) {
            scope.spawn(function);
        }
        function();
    });
}

/// What a planted bug does to the masks of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A draw has the mask of the token before.
    Lag,
    /// A draw without a constraint has another's mask.
    Leak,
    /// A draw behind a draft does not see it.
    Beyond,
    /// A draw has the mask of the row before it.
    Neighbour,
}

/// One sequence: its grammar, and its tokens.
struct Sequence {
    key: constraints::Key,
    grammar: Option<Arc<Grammar>>,
    output: Vec<i32>,
}

struct World {
    random: Random,
    has_drafts: bool,
    constraints: Constraints,
    grammars: Vec<Arc<Grammar>>,
    sequences: Vec<Option<Sequence>>,
    num_begun: u64,
    num_checked: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let grammars = vec![
            schema(
                r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "yes": {"type": "boolean"}},
                "required": ["name", "yes"], "additionalProperties": false}"#,
            ),
            compile(&Source::Regex("(name|nam)+12[0-9]{2,6}(true|false)".into())),
            compile(&Source::Choices(vec![
                "yes".into(),
                "yes and no".into(),
                "maybe".into(),
            ])),
            compile(&Source::JsonObject),
        ];
        Self {
            random: Random(seed),
            has_drafts: !seed.is_multiple_of(3),
            constraints: Constraints::new(NUM_SLOTS, seed.is_multiple_of(2)),
            grammars,
            sequences: (0..NUM_SLOTS).map(|_| None).collect(),
            num_begun: 0,
            num_checked: 0,
        }
    }

    fn begin(&mut self, slot: usize) {
        self.num_begun += 1;
        let key = (self.num_begun, 0);
        let kind = self.random.below(self.grammars.len() + 1);
        let grammar = self.grammars.get(kind).cloned();
        self.constraints.clear(slot);
        if let Some(grammar) = &grammar {
            let matcher = Matcher::new(Arc::clone(grammar), NUM_PROMPT, true);
            self.constraints.begin(slot, key, matcher);
        }
        let output = Vec::new();
        self.sequences[slot] = Some(Sequence {
            key,
            grammar,
            output,
        });
    }

    /// Drafts of a sequence: what is forced, a walk through the grammar that may go wrong, or anything.
    fn drafts(&mut self, slot: usize) -> Vec<i32> {
        let Some(sequence) = &self.sequences[slot] else {
            return Vec::new();
        };
        // The last token of a prompt draws the first: nothing is drafted before.
        if sequence.output.is_empty() || !self.has_drafts {
            return Vec::new();
        }
        let Some(grammar) = sequence.grammar.clone() else {
            return vec![70; self.random.below(3)];
        };
        let (key, mut known) = (sequence.key, sequence.output.clone());
        if self.random.below(3) == 0 {
            let mut matcher = self.constraints.of(key).expect("a matcher");
            return matcher.forced(8);
        }
        let mut drafts = Vec::new();
        for _ in 0..self.random.below(4) {
            let allowed = allowed(&mask_behind(&grammar, &known));
            let is_wrong = self.random.below(6) == 0;
            let token = if is_wrong {
                60
            } else {
                allowed[self.random.below(allowed.len())]
            };
            drafts.push(token);
            if is_wrong || token == END {
                break;
            }
            known.push(token);
        }
        drafts
    }

    /// One step; the first mask that is not as it should be is an error.
    fn step(&mut self, bug: Bug) -> Result<(), String> {
        let mut draws = Vec::new();
        let mut rows = Vec::new();
        for slot in 0..NUM_SLOTS {
            if self.sequences[slot].is_none() || self.random.below(4) == 0 {
                continue;
            }
            let drafts = self.drafts(slot);
            let sequence = self.sequences[slot].as_ref().expect("it is there");
            let known = NUM_PROMPT + sequence.output.len();
            let last = sequence.output.last().copied().unwrap_or(99);
            let tokens: Vec<_> = [last].into_iter().chain(drafts.iter().copied()).collect();
            rows.push((slot, draws.len(), drafts));
            draws.extend(tokens.iter().enumerate().map(|(i, &last_token)| Draw {
                slot: slot as i32,
                position: (known + i) as i32,
                last_token,
            }));
        }
        let masks = self.constraints.start(&draws);
        let mut masks = masks.map_or_else(
            || Masks {
                of_draw: vec![mask_line::FREE; draws.len()],
                num_words: num_words(),
                ..Masks::default()
            },
            |pending| pending.join(&two_threads).expect("no gap"),
        );
        plant(bug, &mut masks, &rows);
        let is_lost = self.random.below(8) == 0;
        for (slot, first, drafts) in rows {
            let sampled = self.check(slot, &masks, first, &drafts)?;
            // A step that fails changes nothing: the same draws come again.
            if !is_lost {
                self.accept(slot, &drafts, &sampled);
            }
        }
        Ok(())
    }

    /// Compares the masks of a row with those of matchers that begin anew, and draws from them.
    fn check(
        &mut self,
        slot: usize,
        masks: &Masks,
        first: usize,
        drafts: &[i32],
    ) -> Result<Vec<i32>, String> {
        let sequence = self.sequences[slot].as_ref().expect("it is there");
        let mut known = sequence.output.clone();
        let mut sampled = Vec::new();
        for i in 0..=drafts.len() {
            let line = masks.of_draw[first + i];
            let Some(grammar) = &sequence.grammar else {
                if line != mask_line::FREE {
                    return Err(format!("slot {slot}: a mask without a constraint"));
                }
                sampled.push(70 + self.random.below(5) as i32);
                continue;
            };
            let expected = allowed(&mask_behind(grammar, &known));
            let got = usize::try_from(line).map(|line| masks.allowed(line));
            if got.as_ref() != Ok(&expected) {
                return Err(format!(
                    "slot {slot}, draw {i}: {got:?} is not {expected:?}"
                ));
            }
            self.num_checked += 1;
            sampled.push(expected[self.random.below(expected.len())]);
            match drafts.get(i) {
                Some(draft) if expected.contains(draft) && *draft != END => known.push(*draft),
                // What stands behind a draft that may not follow does not count.
                _ => break,
            }
        }
        Ok(sampled)
    }

    fn accept(&mut self, slot: usize, drafts: &[i32], sampled: &[i32]) {
        let pairs = sampled.iter().zip(drafts);
        let right = pairs.take_while(|(a, b)| a == b).count();
        let sequence = self.sequences[slot].as_mut().expect("it is there");
        let taken = &sampled[..sampled.len().min(right + 1)];
        // Without drafts nothing follows: the next draw tells the last token.
        if self.has_drafts {
            let max_forced = self.random.below(2) * 4;
            let answers = [(sequence.key, taken)];
            self.constraints.follow(&answers, max_forced, &two_threads);
        }
        for &token in taken {
            if token == END {
                self.constraints.end(sequence.key);
                self.sequences[slot] = None;
                return;
            }
            sequence.output.push(token);
        }
    }

    fn run(&mut self, bug: Bug) -> Result<(), String> {
        for _ in 0..NUM_STEPS {
            for slot in 0..NUM_SLOTS {
                let is_free = self.sequences[slot].is_none();
                if is_free && self.random.below(3) > 0 || self.random.below(50) == 0 {
                    self.begin(slot);
                }
            }
            self.step(bug)?;
        }
        Ok(())
    }
}

fn plant(bug: Bug, masks: &mut Masks, rows: &[(usize, usize, Vec<i32>)]) {
    let of_draw = masks.of_draw.clone();
    for (row, (_, first, drafts)) in rows.iter().enumerate() {
        for i in *first..=first + drafts.len() {
            let is_first = i == *first;
            masks.of_draw[i] = match bug {
                Bug::Lag if !is_first => of_draw[i - 1],
                Bug::Beyond if !is_first && of_draw[i] >= 0 => of_draw[*first],
                Bug::Leak if of_draw[i] == mask_line::FREE && !masks.bits.is_empty() => 0,
                Bug::Neighbour if row > 0 && of_draw[i] >= 0 && of_draw[i - 1] >= 0 => {
                    of_draw[i - 1]
                }
                _ => of_draw[i],
            };
        }
    }
}

#[test]
fn each_mask_is_that_of_the_tokens_before_it() {
    let mut num_checked = 0;
    for seed in 0..12 {
        let mut world = World::new(seed);
        assert_eq!(world.run(Bug::None), Ok(()), "seed {seed}");
        num_checked += world.num_checked;
    }
    assert!(num_checked > 1000, "{num_checked}");
}

#[test]
fn a_mask_that_lags_leaks_or_ignores_a_draft_is_found() {
    for bug in [Bug::Lag, Bug::Leak, Bug::Beyond, Bug::Neighbour] {
        let found = (0..12).any(|seed| World::new(seed).run(bug).is_err());
        assert!(found, "{bug:?}");
    }
}

#[test]
fn a_draw_behind_unknown_tokens_is_an_error() {
    let grammar = compile(&Source::Regex("a+".into()));
    let mut constraints = Constraints::new(1, false);
    constraints.begin(0, (1, 0), Matcher::new(grammar, NUM_PROMPT, true));
    let draw = Draw {
        slot: 0,
        position: 9,
        last_token: 99,
    };
    let pending = constraints.start(&[draw]).expect("a constraint");
    assert!(pending.join(&two_threads).is_err());
}

#[test]
fn an_answer_that_was_not_followed_has_no_masks() {
    let grammar = compile(&Source::Regex("a+".into()));
    let mut matcher = Matcher::new(grammar, NUM_PROMPT, true);
    let token = crate::world::FIRST_BYTE + i32::from(b'a');
    matcher.follow(&[token, token]);
    matcher.seek(NUM_PROMPT, 99).expect("the start is known");
    // The token before it is not known any more.
    matcher.follow(&[token]);
    let mut mask = vec![0; num_words()];
    assert_eq!(matcher.mask(&mut mask), Outcome::TooComplex);
    assert!(matcher.forced(4).is_empty());
}

#[test]
fn a_token_adds_to_the_budget_where_nothing_follows_the_answer() {
    let grammar = compile(&Source::Regex("(?s:.*)".into()));
    let mut constraints = Constraints::new(1, false);
    constraints.begin(0, (1, 0), Matcher::new(grammar, NUM_PROMPT, true));
    for position in NUM_PROMPT..NUM_PROMPT + 40_000 {
        let draw = Draw {
            slot: 0,
            position: position as i32,
            last_token: 97,
        };
        let pending = constraints.start(&[draw]).expect("a constraint");
        let masks = pending.join(&two_threads).expect("no gap");
        assert_eq!(masks.of_draw, [0], "at {position}");
    }
}

#[test]
fn what_is_forced_behind_each_answer_is_that_of_its_matcher() {
    let mut constraints = Constraints::new(3, false);
    for (slot, text) in ["abcdefgh", "ab|xyz", "a*"].into_iter().enumerate() {
        let grammar = compile(&Source::Regex(text.into()));
        constraints.begin(slot, (slot as u64, 0), Matcher::new(grammar, 1, true));
    }
    let token = |byte: u8| crate::world::FIRST_BYTE + i32::from(byte);
    let taken = [[token(b'a')], [token(b'x')], [token(b'a')], [token(b'a')]];
    let answers: Vec<_> = (0..4).map(|i| ((i as u64, 0), &taken[i][..])).collect();
    let forced = constraints.follow(&answers, 3, &two_threads);
    let tokens = |text: &[u8]| text.iter().map(|&byte| token(byte)).collect::<Vec<_>>();
    assert_eq!(forced, [((0, 0), tokens(b"bcd")), ((1, 0), tokens(b"yz"))]);
}

#[test]
fn an_error_of_one_sequence_is_not_another_ones() {
    let grammar = compile(&Source::Regex("ab".into()));
    let mut constraints = Constraints::new(2, true);
    for slot in 0..2 {
        let matcher = Matcher::new(Arc::clone(&grammar), 1, true);
        constraints.begin(slot, (slot as u64, 0), matcher);
    }
    // A token that the grammar does not allow, as if a sampler had ignored the mask.
    let draws = [(0, b'x'), (1, b'a')].map(|(slot, byte)| Draw {
        slot,
        position: 2,
        last_token: crate::world::FIRST_BYTE + i32::from(byte),
    });
    let masks = constraints
        .start(&draws)
        .expect("constraints")
        .join(&two_threads)
        .expect("no gap");
    assert_eq!(masks.of_draw[0], mask_line::NOT_COMPUTED);
    assert_eq!(
        masks.allowed(masks.of_draw[1] as usize),
        [crate::world::FIRST_BYTE + i32::from(b'b')]
    );
}

#[test]
fn an_answer_that_has_ended_has_no_constraint() {
    let grammar = compile(&Source::Regex("a".into()));
    let mut constraints = Constraints::new(4, false);
    for (slot, key) in [(0, (7, 0)), (1, (7, 1)), (2, (8, 0))] {
        constraints.begin(slot, key, Matcher::new(Arc::clone(&grammar), 0, true));
    }
    constraints.end((7, 1));
    assert!(constraints.at(1).is_none() && constraints.at(0).is_some());
    constraints.end_all(7);
    assert_eq!(constraints.len(), 1);
    // Its slot is another's now: an end of the old one changes nothing.
    constraints.begin(2, (9, 0), Matcher::new(grammar, 0, true));
    constraints.end((8, 0));
    assert_eq!(constraints.len(), 1);
    let draw = Draw {
        slot: 3,
        position: 1,
        last_token: 5,
    };
    assert!(constraints.start(&[draw]).is_none());
}
