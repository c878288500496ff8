//! Speculation: which tokens may follow, how likely each is, and how many are worth checking.
//!
//! - [`suffix_automaton`]: where the end of a sequence occurs before in it.
//! - [`lookup`]: drafts from there (prompt lookup; Saxena, 2023), with their probabilities.
//! - [`price`]: of all drafts of a step those that make it yield more tokens per second.

mod lookup;
mod price;
mod suffix_automaton;

pub(crate) use self::{
    lookup::{Acceptance, Lookup},
    price::{Candidate, choose},
};
