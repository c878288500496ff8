//! How long threads of this process have waited for a processor, as Linux counts it.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

/// What the kernel had counted of a thread, in nanoseconds.
#[derive(Clone, Copy)]
struct Counts {
    ran: u64,
    waited: u64,
}

/// How far a thread was, and since when it has not run.
#[derive(Clone, Copy)]
struct Seen {
    first: Counts,
    ran: u64,
    at: Instant,
}

/// What threads have waited since a first look. On systems that do not count, no thread ever waits.
pub(crate) struct RunQueue {
    threads: HashMap<u64, Seen>,
    began: Instant,
    told: Duration,
}

impl RunQueue {
    /// Looks at all threads for the first time.
    pub(crate) fn new(now: Instant) -> Self {
        let mut queue = Self {
            threads: HashMap::new(),
            began: now,
            told: Duration::ZERO,
        };
        queue.look(now);
        queue
    }

    /// By how much the wait of the thread that has waited most has grown since the last call.
    pub(crate) fn waited(&mut self, now: Instant) -> Duration {
        let longest = self
            .look(now)
            .min(now.saturating_duration_since(self.began));
        let more = longest.saturating_sub(self.told);
        self.told += more;
        more
    }

    fn look(&mut self, now: Instant) -> Duration {
        let mut longest = Duration::ZERO;
        for (thread, counts) in threads() {
            let seen = self.threads.entry(thread).or_insert(Seen {
                first: counts,
                ran: counts.ran,
                at: now,
            });
            let waited = counts.waited.saturating_sub(seen.first.waited);
            let mut waited = Duration::from_nanos(waited);
            if counts.ran != seen.ran {
                (seen.ran, seen.at) = (counts.ran, now);
            } else if is_runnable(thread) {
                // The kernel counts a wait once it is over.
                waited += now.saturating_duration_since(seen.at);
            }
            longest = longest.max(waited);
        }
        longest
    }
}

fn threads() -> Vec<(u64, Counts)> {
    let Ok(folder) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    folder
        .filter_map(|entry| {
            let thread = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
            let mut numbers = text.split_whitespace().map(str::parse);
            let ran = numbers.next()?.ok()?;
            let waited = numbers.next()?.ok()?;
            Some((thread, Counts { ran, waited }))
        })
        .collect()
}

/// Whether a thread runs or waits for a processor, and for nothing else.
fn is_runnable(thread: u64) -> bool {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name of the thread stands in parentheses, and may hold any character.
    text.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
}
