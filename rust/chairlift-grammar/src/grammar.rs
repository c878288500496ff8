//! From a constraint to a grammar that sequences share, within bounds of time and memory.

use std::{collections::HashSet, panic::AssertUnwindSafe, thread};

use llguidance::{
    ParserFactory, TokenParser,
    api::{GrammarInit, ParserLimits},
    panic_utils,
    toktrie::InferenceCapabilities,
};

use crate::{error::CompileError, source::Source, vocabulary::Vocabulary};

/// Letters of a message at most: a parser quotes what it was given.
const MAX_MESSAGE: usize = 500;

/// Of the thread that compiles. The parser recurses into what a client wrote: 64 MiB hold 6,000 references in a row, or
/// 16,000 rules. A stack that overflows ends the process, so a process of its own compiles each constraint first, on a smaller
/// stack: what has passed there passes here.
pub const STACK_BYTES: usize = 64 << 20;

/// Of a rule, beside its symbols, and of a lexeme, beside its expression: measured.
const RULE_BYTES: usize = 64;
const LEXEME_BYTES: usize = 1024;

/// What a client reads where the parser panicked: its own words are of no use to it.
const PANIC: &str = "the parser of constraints does not support this combination";

/// Sets of tokens that are allowed as a whole where the rest of the text may be anything of this form; only the other tokens are
/// then tried one by one. Measured with 49,152 tokens, of which 702 are no text of a JSON string up to 30 characters, 857 up to 15
/// and 6,099 up to 10, and 313 begin or end amid a character: a mask takes 0.67 of the time of the parser's own sets inside any
/// text, and 0.78 in a schema of short strings.
const SLICES: [&str; 4] = [
    r#"[^"\\\x00-\x1F\x7F]{1,10}"#,
    r#"[^"\\\x00-\x1F\x7F]{1,15}"#,
    r#"[^"\\\x00-\x1F\x7F]{1,30}"#,
    "(?s:.{1,100})",
];

/// Bounds of compiling, and of each token. Fuel is work, not time: the same grammar fails everywhere or nowhere.
fn limits() -> ParserLimits {
    ParserLimits {
        // Some 20 ms.
        initial_lexer_fuel: 1_000_000,
        // A mask: some 14 ms, and 2.5 ms.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        // One to two kilobytes each.
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        // Errors of a sequence would hold its tokens.
        verbose_errors: false,
    }
}

/// Compiles constraints over one vocabulary; any thread may use it.
pub struct Compiler {
    factory: ParserFactory,
    vocabulary: Vocabulary,
    stack_bytes: usize,
}

impl Compiler {
    /// A compiler whose threads have stacks of so many bytes; building it reads the whole vocabulary.
    ///
    /// # Errors
    /// If the parser does not take the vocabulary.
    pub fn new(vocabulary: Vocabulary, stack_bytes: usize) -> Result<Self, CompileError> {
        let factory = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let slices = SLICES.map(String::from);
            ParserFactory::new(vocabulary.env(), InferenceCapabilities::default(), &slices)
        }));
        let mut factory = factory.map_err(|error| CompileError(message(&error.to_string())))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self {
            factory,
            vocabulary,
            stack_bytes,
        })
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The grammar of a constraint, compiled on a thread of its own.
    ///
    /// # Errors
    /// With the parser's message.
    pub fn compile(&self, source: &Source) -> Result<Grammar, CompileError> {
        thread::scope(|scope| {
            let compiling = thread::Builder::new()
                .name("chairlift-compile".into())
                .stack_size(self.stack_bytes)
                .spawn_scoped(scope, || self.compile_here(source));
            let compiling =
                compiling.map_err(|error| CompileError(format!("no thread: {error}")))?;
            compiling
                .join()
                .unwrap_or_else(|_| Err(CompileError(PANIC.into())))
        })
    }

    fn compile_here(&self, source: &Source) -> Result<Grammar, CompileError> {
        let grammar = source.grammar()?;
        let parser = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let init = GrammarInit::Serialized(grammar);
            let mut parser = self.factory.create_parser_from_init_default(init)?;
            parser.start_without_prompt();
            // Drafts that are wrong are taken back: what cannot go back is refused by name.
            parser.parser.rollback(0)?;
            Ok(parser)
        }));
        let parser = parser.map_err(|error| CompileError(message(&format!("{error:#}"))))?;
        if let Some(error) = parser.parser.get_error() {
            return Err(CompileError(message(&error.message())));
        }
        Ok(Grammar {
            num_bytes: source.num_bytes() + num_bytes(&parser),
            parser,
            vocabulary: self.vocabulary.clone(),
        })
    }
}

/// A compiled constraint.
pub struct Grammar {
    parser: TokenParser,
    vocabulary: Vocabulary,
    num_bytes: usize,
}

impl Grammar {
    /// A parser at the start of a text, which can be cancelled. Its lexer is its own: an error in it is no other sequence's.
    pub(crate) fn parser(&self) -> TokenParser {
        let mut parser = self.parser.deep_clone();
        parser.enable_cancellation();
        parser
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// About how much memory it takes.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes
    }
}

/// About how much memory a parser takes at the start of a text.
fn num_bytes(parser: &TokenParser) -> usize {
    let grammar = parser.parser.grammar();
    let mut sizes = 0;
    let mut seen = HashSet::from([grammar.start()]);
    let mut waiting = vec![grammar.start()];
    while let Some(symbol) = waiting.pop() {
        let data = grammar.sym_data(symbol);
        sizes += size_of_val(data) + data.name.len() + size_of_val(&data.rules[..]);
        for &rule in &data.rules {
            let (symbols, parameters, _) = grammar.rule_rhs(rule);
            sizes += size_of_val(symbols) + size_of_val(parameters) + RULE_BYTES;
            let new = symbols.iter().filter(|&&symbol| seen.insert(symbol));
            waiting.extend(new);
        }
    }
    let spec = grammar.lexer_spec();
    // An expression of a lexeme is kept as it was written, with what it consists of, and in the lexer.
    let lexemes = size_of_val(&spec.lexemes[..]) + spec.lexemes.len() * LEXEME_BYTES;
    let expressions = spec.regex_builder.exprset().num_bytes();
    // Vectors have room to spare, and symbols that no rule is left of count, too: measured, up to twice as much.
    2 * (sizes + lexemes + expressions) + parser.parser.lexer_stats().num_bytes
}

/// The part of a parser's message that is for a client: no backtrace, no state, not too long.
pub(crate) fn message(text: &str) -> String {
    let end = ["\n<backtrace>", "\n<state>", "\n<non-verbose/>"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    if text.starts_with("panic: ") || text.contains("\n<backtrace>") {
        return PANIC.to_owned();
    }
    let text = text[..end].trim();
    if text.chars().nth(MAX_MESSAGE).is_none() {
        return text.to_owned();
    }
    let cut: String = text.chars().take(MAX_MESSAGE).collect();
    format!("{cut}...")
}
