//! Calls of a prefill replica: prompts that it computes for others.

use std::collections::BTreeMap;

use chairlift_core::{Nanos, RequestId};

use crate::roles::{Message, Missing};

#[derive(Clone, Debug)]
struct Call {
    id: RequestId,
    missing: Missing,
    /// The block index behind the last one that was sent.
    end: usize,
    /// When that is there.
    sent_at: Nanos,
}

/// The calls, by the index of their request, and the link over which their blocks go.
#[derive(Clone, Debug, Default)]
pub(super) struct Sender {
    calls: BTreeMap<u32, Call>,
    link_free_at: Nanos,
}

impl Sender {
    pub(super) fn begin(&mut self, now: Nanos, id: RequestId, missing: Missing) {
        let call = Call {
            id,
            missing,
            end: missing.first,
            sent_at: now,
        };
        self.calls.insert(missing.index, call);
    }

    /// The request of the scheduler that computes a call's prompt.
    pub(super) fn request(&self, index: u32) -> Option<RequestId> {
        self.calls.get(&index).map(|call| call.id)
    }

    /// So many tokens of a prompt are computed at `now`: sends what is new; returns when it is there, and what to say then.
    pub(super) fn computed(
        &mut self,
        now: Nanos,
        index: u32,
        num_computed: usize,
        block_size: usize,
        token_time: f64,
    ) -> Option<(Nanos, Message)> {
        let call = self.calls.get_mut(&index)?;
        let end = (num_computed / block_size).min(call.missing.first + call.missing.count);
        if end <= call.end {
            return None;
        }
        let time = ((end - call.end) * block_size) as f64 * token_time;
        self.link_free_at = self.link_free_at.max(now) + time.round_ties_even() as Nanos;
        (call.end, call.sent_at) = (end, self.link_free_at);
        Some((self.link_free_at, Message::Computed { index, end }))
    }

    /// A call has ended, well or not; returns when its caller knows all of it.
    pub(super) fn end(&mut self, now: Nanos, index: u32) -> (Nanos, Message) {
        let call = self.calls.remove(&index);
        let sent_at = call.map_or(now, |call| call.sent_at.max(now));
        (sent_at, Message::Over { index })
    }
}
