//! Constraints: which tokens may follow, so that an answer is what a JSON schema, a regex, a Lark grammar or choices say.
//!
//! ```text
//! Source --compile--> Grammar --one per sequence--> Matcher --position by position--> a mask, forced tokens
//!   (once, bounded)    (shared)                      (Constraints, by slot)
//! ```
//!
//! - [`source`]: what a client writes, with bounds, as a grammar of `llguidance`.
//! - [`vocabulary`]: the model's token table as a trie.
//! - [`grammar`]: the compiler and its limits.
//! - [`matcher`]: where one sequence is in its grammar; a function of its tokens by position.
//! - [`patterns`]: what patterns of keys match.
//! - [`constraints`]: the matchers of all sequences, and the masks of a step.
//! - [`processor_time`]: what the parsers of a request may use.
//! - [`workers`]: the threads that compute masks, beside the forward pass or after it.

pub mod constraints;
mod error;
pub mod grammar;
pub mod matcher;
pub mod patterns;
mod processor_time;
pub mod source;
pub mod vocabulary;
mod workers;

pub use self::{
    constraints::{Constraints, Draw, Masks, Pending},
    error::CompileError,
    grammar::{Compiler, Grammar},
    matcher::Matcher,
    source::Source,
    vocabulary::Vocabulary,
    workers::Spread,
};
