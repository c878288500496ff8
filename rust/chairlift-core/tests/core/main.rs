//! All tests of the public core in one binary: the fake model is compiled once, not once per file.

mod answers;
mod block_events;
mod block_map;
mod changes;
mod draft_model;
mod drafts;
mod driver;
mod explain;
mod failed_steps;
mod final_credit;
mod invariants;
mod loading;
mod pipelining;
mod policies;
mod prompts;
mod scenarios;
mod shared_blocks;
mod shares;
mod states;
mod step_records;
mod suspended;
mod swap;
mod waiting_list;
mod windows;
mod yielding;
