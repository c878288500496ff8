//! What a run has met: proof that the simulation reaches what it claims to reach.

use std::fmt;

macro_rules! sights {
    ($($name:ident $text:literal),+ $(,)?) => {
        /// Something that can happen in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Sight { $($name),+ }

        const NAMES: &[&str] = &[$($text),+];
    };
}

sights! {
    Steps "steps",
    Events "events",
    DeepChecks "deep checks",
    Accepted "requests accepted",
    QueueFull "refused: queue full",
    Flawed "refused: flawed",
    Completed "answers completed",
    StoppedByToken "stopped by a token",
    StoppedByString "stopped by a string",
    AbortWaiting "aborted while waiting",
    AbortMidChunk "aborted amid chunks",
    AbortRunning "aborted while running",
    AbortPreempted "aborted while preempted",
    AbortInFlight "aborted with a step in flight",
    AbortLastStep "aborted in the last step",
    AbortEnded "aborted after the end",
    AbortUnknown "aborted though unknown",
    Restopped "limits and stops changed",
    Rescheduled "priority and deadlines changed",
    EndedByChange "ended by lower limits",
    SuspendedRunning "suspended by a change, with a row",
    SuspendedWaiting "suspended by a change, without",
    ResumedRunning "go on by a change, with a row",
    ResumedWaiting "go on by a change, without",
    ChangeUnknown "changed though not live",
    IdlePreempted "suspended requests that gave way",
    LastCredits "last credits with tokens left",
    EndedSpent "ended by the last credit, spent",
    NeverPaid "ended by the last credit, never begun",
    PaidToTheEnd "ended with the last token paid for",
    QueueTimeouts "queue deadlines passed",
    TimeLimits "deadlines passed",
    FailedSteps "steps failed",
    Failing "requests failing",
    RolledBack "requests rolled back",
    NotFinite "rows not finite",
    WrongReports "reports refused",
    DraftsTaken "drafts proposed",
    DraftsRefused "drafts of requests that do not decode",
    DraftsPlanned "draft tokens planned",
    DraftsLookedUp "draft tokens looked up",
    DraftsCut "draft tokens left out",
    DraftsAccepted "draft tokens accepted",
    DraftsRejected "draft tokens rejected",
    DraftsNotFinite "not finite after a draft",
    DraftsPastEnd "ended amid accepted drafts",
    DraftsOfSeveral "drafts of one of several answers",
    Late "events while a step was in flight",
    Pipelined "steps planned while one ran",
    Overshoots "tokens discarded after the end",
    Preemptions "preemptions",
    SwappedOut "blocks to host memory",
    SwappedIn "blocks from host memory",
    SwappedBack "requests that went on where they were",
    SwappedBackMidBlock "the same, amid a block",
    SwapsForgotten "requests forgotten by host memory",
    CacheHits "prompts with cached tokens",
    Trimmed "blocks behind a window",
    Evicted "cached blocks evicted",
    Loaded "blocks loaded from a store",
    StateFilled "recurrent states loaded from a store",
    LoadedWhole "beginnings of prompts loaded whole",
    BlockEvents "block events",
    Flushes "flushes",
    ClockForward "clock jumps forward",
    ClockBack "clock steps back",
    TimeSpent "steps that fill their time",
    Shares "joined before an earlier tenant",
    RowsKept "rows kept for others",
    PassedHead "admitted before a request without a right to reserved rows",
    Deferred "prompts deferred",
    Passed "joined before prompts that had begun",
    ForStep "told to wait for the step",
    ForRow "told to wait for a row",
    ForBlocks "told to wait for blocks",
    ForBudget "told to wait for the budget",
    ForPolicy "told to wait for the policy",
    ForShare "told to wait for their share",
    ForSuspended "told to wait since they are suspended",
    Groups "requests with several answers",
    Forks "answers that took over a prompt",
    PromptPieces "pieces of prompts",
    PromptScores "log probabilities of prompts",
    Copies "blocks copied",
    Yielded "preempted for a tenant below its share",
    Parted "answers that left the one that computes their prompt",
    GroupsPreempted "requests preempted before their answers forked",
    Dealt "credit left to other answers",
    StatesLoaded "recurrent states loaded",
    StatesCopied "recurrent states of other rows",
    StatesSaved "recurrent states saved",
    StatesInVain "recurrent states saved by steps that failed",
    Idle "idle",
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; NAMES.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; NAMES.len()])
    }
}

impl Tally {
    pub(crate) fn add(&mut self, sight: Sight, count: u64) {
        self.0[sight as usize] += count;
    }

    pub(crate) fn saw(&mut self, sight: Sight) {
        self.add(sight, 1);
    }

    pub(crate) fn get(&self, sight: Sight) -> u64 {
        self.0[sight as usize]
    }

    /// Steps of the scheduler.
    pub fn steps(&self) -> u64 {
        self.get(Sight::Steps)
    }

    /// Adds up what two runs have met.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(mine, theirs)| *mine += theirs);
    }

    /// What was never met.
    pub fn unseen(&self) -> Vec<&'static str> {
        let pairs = NAMES.iter().zip(self.0);
        pairs
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| *name)
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NAMES
            .iter()
            .zip(self.0)
            .try_for_each(|(name, count)| writeln!(f, "  {name:<32} {count:>12}"))
    }
}
