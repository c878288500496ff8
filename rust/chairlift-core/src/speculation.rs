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
    price::{Candidate, ModelDrafts, StepYield, choose},
};

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposer {
    /// The sequence itself.
    Lookup,
    /// The caller: what a grammar forces.
    Caller,
    /// A draft model.
    Model,
}

/// The place of a draft model's share of right drafts.
pub(crate) const MODEL: usize = 1;

impl Proposer {
    /// Where in [`crate::request::Request::acceptance`] its share of right drafts is; the lookup keeps its own.
    pub(crate) fn place(self) -> Option<usize> {
        match self {
            Self::Lookup => None,
            Self::Caller => Some(0),
            Self::Model => Some(MODEL),
        }
    }
}
