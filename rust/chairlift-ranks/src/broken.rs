//! Why a group of ranks goes on no more.

use thiserror::Error;

/// What ended the group; the first cause stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Rank 0 ended the group in order.
    Closed,
    /// A rank did not arrive in time: it hangs, or is stopped.
    Late,
    /// A rank could not compute its part.
    Failed,
    /// The process of a rank ended.
    Died,
    /// A rank found another message than it expected.
    Disagreed,
    /// The connection to a rank on another host ended.
    Lost,
}

const CAUSES: [Cause; 6] = [
    Cause::Closed,
    Cause::Late,
    Cause::Failed,
    Cause::Died,
    Cause::Disagreed,
    Cause::Lost,
];

/// The group is poisoned: no round ends any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.text())]
pub struct Broken {
    /// What ended it.
    pub cause: Cause,
    /// The rank that it happened to.
    pub rank: usize,
}

impl Broken {
    fn text(&self) -> String {
        let rank = self.rank;
        match self.cause {
            Cause::Closed => "the group of ranks is closed".to_owned(),
            Cause::Late => format!("rank {rank} did not arrive in time"),
            Cause::Failed => format!("rank {rank} failed"),
            Cause::Died => format!("the process of rank {rank} ended"),
            Cause::Disagreed => format!("rank {rank} got another message than was sent"),
            Cause::Lost => format!("the connection to rank {rank} ended"),
        }
    }

    /// As a word, which is never 0.
    pub(crate) fn to_word(self) -> u32 {
        let number = CAUSES.iter().position(|cause| *cause == self.cause);
        // A group has fewer ranks than 16 bits count.
        ((number.unwrap_or(0) as u32 + 1) << 16) | (self.rank as u32 + 1)
    }

    /// From a word of [`Self::to_word`]; memory that holds another says that rank 0 disagreed.
    pub(crate) fn from_word(word: u32) -> Self {
        let number = (word >> 16).checked_sub(1);
        let cause = number.and_then(|number| CAUSES.get(number as usize));
        Self {
            cause: cause.copied().unwrap_or(Cause::Disagreed),
            rank: ((word & 0xffff) as usize).saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_and_its_rank_go_through_a_word() {
        for cause in CAUSES {
            for rank in [0, 1, 63] {
                let broken = Broken { cause, rank };
                assert_ne!(broken.to_word(), 0);
                assert_eq!(Broken::from_word(broken.to_word()), broken);
            }
        }
    }

    #[test]
    fn a_word_of_something_else_is_no_cause_of_a_panic() {
        assert_eq!(Broken::from_word(u32::MAX).cause, Cause::Disagreed);
        assert_eq!(Broken::from_word(0).cause, Cause::Disagreed);
        assert_eq!(Broken::from_word(0).rank, 0);
    }
}
