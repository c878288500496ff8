//! From token ids to text, and from text to the fields of an answer. Nothing here knows of requests or steps.
//!
//! Text: incremental detokenisation and stop strings. For fields see [`answer`].
//!
//! - For every token sequence, the deltas of a [`TextState`] concatenate to what the model's own decoder
//!   (`tokenizers`) makes of the whole sequence; where it cuts at a stop string, to a prefix of that.
//! - A delta never splits a character.
//! - What is held back is an undecided character or byte run, and the longest end of the text that can
//!   still become a stop string: nothing more. Without stop strings decided text passes straight through.
//! - A token costs O(bytes x stop strings); memory is the longest stop string, or match of a pattern, plus a byte run.
//!
//! ```text
//!   token ids ──► Detokenizer ──► decided text ──► StopMatcher ──► delta
//!                 holds: bytes of                  holds: a possible
//!                 an open character                start of a stop string
//!                 or byte run
//! ```
#![forbid(unsafe_code)]

pub mod answer;
mod detokenizer;
mod stop;
mod stop_regex;
mod text_state;
mod token_table;

pub use detokenizer::Detokenizer;
pub use stop_regex::{MAX_STOP_MATCH, StopRegex};
pub use text_state::{TextOptions, TextState};
pub use token_table::TokenTable;
