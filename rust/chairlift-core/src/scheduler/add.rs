//! What a request must be to be queued.

use super::Scheduler;
use crate::{
    cost_model::Work,
    error::{Refusal, RefusalReason},
    ids::{Nanos, RequestId, Slot},
    new_request::NewRequest,
    request::{MAX_TOKENS_RESERVED, Origin, Request, State, add_credit},
};

/// A request is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub request: RequestId,
    /// The slots of its sequences, in order.
    pub slots: Vec<Slot>,
    /// Requests before it in the queue; with several tenants as if they took turns.
    pub queue_position: usize,
}

impl Scheduler {
    /// Queues a request.
    ///
    /// # Errors
    /// A refusal leaves nothing behind.
    pub fn add(&mut self, now: Nanos, mut new: NewRequest) -> Result<Added, Refusal> {
        self.wait_clock.advance(now);
        self.check_request(&new)?;
        new.cache_read &= self.config.prefix_cache;
        new.cache_write &= self.config.prefix_cache;
        let sequences = self.take_slots(new.num_sequences)?;
        let (slot, request) = sequences[0];
        for time in [new.queue_deadline, new.deadline].into_iter().flatten() {
            self.deadlines.push(time, request);
        }
        let num_tokens = new.prompt.len() + new.max_tokens.min(MAX_TOKENS_RESERVED);
        let tenant = self.queue.shares.enter(&new.namespace.tenant);
        let table = self.kv.new_table(&new.namespace, tenant, num_tokens);
        let start_by = self.start_by(new.prompt.len(), new.queue_deadline, new.first_token_by);
        let (credit, num_prompt) = (new.credit, new.prompt.len());
        let mut parent = Request::new(request, now, new, self.max_context_len, table, tenant);
        parent.timing.start_by = start_by;
        parent.num_siblings = sequences.len() - 1;
        let share = |index: usize| {
            let num_sequences = sequences.len() as u64;
            let over = |credit: u64| u64::from((index as u64) < credit % num_sequences);
            let share = credit.map(|credit| credit / num_sequences + over(credit));
            share.map_or(usize::MAX, |share| add_credit(num_prompt, share))
        };
        parent.credit_end = share(0);
        for (index, &(sibling_slot, id)) in sequences.iter().enumerate().skip(1) {
            let mut sibling = parent.with_its_room();
            (sibling.id, sibling.index) = (id, index as u32);
            (sibling.parent, sibling.num_siblings) = (Some(slot), 0);
            if let Some(fields) = &mut sibling.fields {
                fields.set_answer(index as u32);
            }
            (sibling.stats.prompt_tokens, sibling.credit_end) = (0, share(index));
            (sibling.state, sibling.prompt) = (State::WithParent, None);
            self.queue.shares.enter_again(tenant);
            self.slots.put(sibling_slot, sibling);
        }
        let slots: Vec<_> = sequences.into_iter().map(|(slot, _)| slot).collect();
        if slots.len() > 1 {
            self.num_with_parent += slots.len() - 1;
            self.slots.form_group(request, slots.clone());
        }
        if !parent.is_suspended() {
            self.queue.arrive(tenant);
        }
        let queue_position = self.queue.num_before(tenant, parent.queue_key());
        self.slots.put(slot, parent);
        self.wait(slot, Origin::Fresh);
        self.compact_deadlines();
        Ok(Added {
            request,
            slots,
            queue_position,
        })
    }

    /// When a request has to start, as far as is known now: its queue deadline, or early enough to compute its prompt.
    pub(super) fn start_by(
        &self,
        num_prompt: usize,
        queue_deadline: Option<Nanos>,
        first_token_by: Option<Nanos>,
    ) -> Option<Nanos> {
        let prefill = self.costs.predict(Work::of(0, num_prompt)) as Nanos;
        let start_by = first_token_by.map(|time| time.saturating_sub(prefill));
        [queue_deadline, start_by].into_iter().flatten().min()
    }

    fn check_request(&self, new: &NewRequest) -> Result<(), Refusal> {
        let num_prompt = new.prompt.len();
        let vocab_size = self.config.vocab_size;
        let (model, context) = (self.config.max_model_len, self.max_context_len);
        let known = |&id: &i32| usize::try_from(id).is_ok_and(|id| id < vocab_size);
        let refuse = |reason, field, message| {
            Err(Refusal {
                reason,
                field,
                message,
            })
        };
        let bad = |field, message| refuse(RefusalReason::BadParameter, field, message);
        let max = self.config.max_sequences();
        if !(1..=max).contains(&new.num_sequences) {
            let got = new.num_sequences;
            return bad("sampling.n", format!("expected 1 to {max}, got {got}"));
        }
        if num_prompt == 0 {
            return bad("prompt", "expected at least one token, got none".into());
        }
        if let Some(i) = new.prompt.iter().position(|id| !known(id)) {
            return bad(
                "token_ids",
                format!("expected ids below {vocab_size}, got another at position {i}"),
            );
        }
        if new.max_tokens == 0 {
            return bad("stopping.max_tokens", "expected at least 1, got 0".into());
        }
        if new.min_tokens > new.max_tokens {
            let (min, max) = (new.min_tokens, new.max_tokens);
            return bad(
                "stopping.min_tokens",
                format!("expected at most max_tokens ({max}), got {min}"),
            );
        }
        // The last token of an answer is never computed: a prompt with one token behind it may fill the context.
        let max_prompt = |limit: usize| limit - usize::from(new.max_tokens > 1);
        if num_prompt > max_prompt(model) {
            let message = format!(
                "expected at most {} tokens (what the model's context leaves), got {num_prompt}",
                max_prompt(model)
            );
            return refuse(RefusalReason::PromptTooLong, "prompt", message);
        }
        if num_prompt > max_prompt(context) {
            let message = format!(
                "expected at most {} tokens (all that this server's KV cache can hold), got {num_prompt}",
                max_prompt(context)
            );
            return refuse(RefusalReason::KvCapacity, "prompt", message);
        }
        Ok(())
    }

    /// Slots for so many sequences, with their ids; the cap of the queue counts them.
    fn take_slots(&mut self, num_sequences: usize) -> Result<Vec<(Slot, RequestId)>, Refusal> {
        let max = self.config.max_queued_requests;
        if self.num_waiting() + num_sequences > max {
            return Err(Refusal {
                reason: RefusalReason::QueueFull,
                field: "",
                message: format!(
                    "{} of {max} requests are waiting already",
                    self.num_waiting()
                ),
            });
        }
        let slots = self.slots.take(num_sequences);
        Ok(slots.expect("invariant: a waiting or running sequence has a slot"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, KvGroup},
        policy::Policy,
    };
    use chairlift_text::TokenTable;
    use std::sync::Arc;

    #[test]
    fn each_sequence_has_memory_for_its_next_tokens_and_blocks() {
        let config = Config {
            policy: Policy::Continuous,
            max_num_seqs: 4,
            max_num_batched_tokens: 8,
            step_budget: None,
            max_model_len: 64,
            max_queued_requests: 16,
            vocab_size: 8,
            block_size: 4,
            num_blocks: 65,
            num_host_blocks: 0,
            swap_block_time: 0,
            kv_groups: vec![KvGroup { window: None }],
            state_snapshots: None,
            prefix_cache: false,
            hash_key: [1; 32],
            steps_in_flight: 1,
            max_step_drafts: 1024,
            prompt_lookup: false,
        };
        let tokens: Vec<_> = (0..8).map(|id| vec![b'a' + id]).collect();
        let table = Arc::new(TokenTable::new(&tokens, &[], &[], false));
        let mut scheduler = Scheduler::new(config, table).expect("a valid configuration");
        let new = NewRequest {
            num_sequences: 3,
            ..NewRequest::new(vec![1, 2, 3], 40)
        };
        let added = scheduler.add(0, new).expect("the request is taken");
        for slot in added.slots {
            let request = scheduler.request(slot);
            assert!(
                request.tokens.capacity() >= 43,
                "sequence {}",
                request.index
            );
            assert!(request.table.has_room_for(11), "sequence {}", request.index);
        }
    }
}
