//! Bugs in what tenants get of each other: order, shares, reserved and yielded rows.

use crate::table::{Mutant, mutants};

mutants! { OF_TENANTS of "chairlift-core":
    a_flood_goes_first, "-", "the first request is admitted first, whatever its tenant was served", "queue.rs":
        "(self.shares.served(tenant), self.of_tenant(tenant).first())" => "(0 * self.shares.served(tenant), self.of_tenant(tenant).first())";
    who_stays_away_saves_up, "-", "a tenant that comes back has a claim on the time before", "queue/shares.rs":
        "entry.served = entry.served.max(floor);" => "let _ = floor;";
    reserved_rows_go_to_the_flood, "-", "a flood takes the rows that are reserved for tenants below their share", "scheduler/reserved_rows.rs":
        "usage.has_share(request.tenant) && !expected" => "!usage.has_share(request.tenant) && !expected";
    reserved_rows_wait_for_the_flood, "-", "a request that may have a reserved row waits behind one that may not", "scheduler/reserved_rows.rs":
        "scheduler.slots.find(scheduler.queue.first_new(passes)?)" => "scheduler.queue.first_new(passes).and(None)";
    suspended_rows_wait_for_the_flood, "-", "a request of a flood is before one that may have the row of a suspended request", "scheduler/reserved_rows.rs":
        "scheduler.rows.num_free() + self.num_idle_rows" => "scheduler.rows.num_free() + self.num_idle_rows * 99";
    one_row_is_kept, "-", "of many rows as few are kept as of sixteen", "scheduler/reserved_rows.rs":
        "(num_rows / ROWS_PER_RESERVED).max(1)" => "(num_rows / ROWS_PER_RESERVED).min(1)";
    rows_are_kept_for_ever, "-", "a tenant that left long ago is still expected", "queue/shares.rs":
        "now.saturating_sub(left) < ABSENCE" => "now >= left";
    prompts_below_their_share_wait, "-", "a tenant below its share waits for prompts that others have begun", "scheduler/fair_share.rs":
        "!self.deferred.is_empty()" => "false";
    no_prompt_is_deferred, "-", "begun prompts of a tenant below its share wait for those of others", "scheduler/fair_share.rs":
        "!self.items.is_empty() && is_in_prompt" => "false && is_in_prompt";
    newcomers_never_cease, "-", "a tenant that comes seldom goes first however much it was served", "scheduler/fair_share.rs":
        "shares.served(tenant) <= shares.served(other)" => "shares.served(tenant) <= shares.served(other) + 99_999";
    prompts_over_their_share_join, "-", "a tenant with its share joins before prompts that have begun", "scheduler/admit.rs":
        "resumes || !self.goes_before_deferred(tenant)" => "resumes";
    debts_are_forgiven, "-", "a tenant that comes back owes nothing", "queue/shares.rs":
        "entry.served = entry.served.max(floor);" => "entry.served = floor;";
    output_is_free, "-", "a share counts prompts only", "scheduler/outcome.rs":
        "OUTPUT_COST * num_taken as u64" => "OUTPUT_COST * num_taken as u64 / 9";
    hits_are_charged, "-", "what the prefix cache has is charged again", "scheduler/admit.rs":
        "PROMPT_COST * (request.num_prompt - start) as u64" => "PROMPT_COST * request.num_prompt as u64";
    no_row_is_yielded, "-", "a tenant keeps more rows than its share while another waits", "scheduler/yielding.rs":
        "Some(num) if num <= order.len() => order[..num].to_vec()," => "Some(num) if num > usize::MAX - 1 => order,";
    the_suspended_keep_their_rows, "-", "running requests yield where suspended ones would do", "scheduler/yielding.rs":
        "scheduler.idle().collect()" => "scheduler.idle().filter(|_| false).collect()";
    more_than_the_surplus_is_yielded, "-", "a tenant yields rows of its own share", "scheduler/fair_share.rs":
        "self.is_share(self.num_used(tenant) - 1)" => "self.num_rows > 0";
    the_oldest_yields, "-", "the oldest running request yields", "scheduler/yielding.rs":
        "Some(slot) != oldest" => "(Some(slot) != oldest || true)";
    yields_without_progress, "-", "a sequence that came back yields at once", "request.rs":
        "self.tokens.len() >= self.yields_from" => "self.tokens.len() + 99 >= self.yields_from";
    blocks_are_taken_from_those_with_little, "-", "a request of a tenant within its share is preempted before one of a tenant beyond it", "scheduler/preempt.rs":
        "candidates.retain(is_beyond);" => "candidates.retain(|slot| is_beyond(slot) || true);";
    the_flood_takes_blocks_of_others, "-", "a request of a tenant beyond its share preempts that of one within it", "scheduler/preempt.rs":
        "} else if is_beyond(&running[index])" => "} else if false && is_beyond(&running[index])";
    a_wide_request_keeps_a_free_row, "-", "a tenant without any row waits behind a request that lacks rows", "scheduler/yielding.rs":
        "usage.num_used(tenant) == 0 && request()" => "usage.num_used(tenant) > 99_999 && request()";
    wide_requests_are_passed_again, "-", "a tenant without any row passes a request that lacks rows again and again", "queue/shares.rs":
        "entry(tenant).admitted_at < entry(other).waits_since" => "entry(tenant).admitted_at < entry(other).waits_since + 99_999";
    a_long_prompt_takes_the_step, "-", "prompts that have begun wait until the long prompt of another tenant is computed", "scheduler/fair_share.rs":
        "max.max(MIN_CHUNK)" => "max.max(MIN_CHUNK + 99_999)";
    prompts_leave_tokens_to_deferred_ones, "-", "a prompt leaves tokens to a request that deferred prompts go before", "scheduler/fair_share.rs":
        "            && self.passes_deferred(request, usage)\n" => "";
    yielded_rows_are_claimed_back, "-", "what has yielded goes before the requests for which it did", "scheduler/reserved_rows.rs":
        "self.passes_preempted(head)" => "self.passes_preempted(head).filter(|_| false)";
    yielded_rows_are_not_reserved, "-", "a preempted request takes a reserved row", "scheduler/reserved_rows.rs":
        "if !can_reserve || is_left {" => "if !can_reserve || is_left || request.is_preempted() {";
    a_group_is_one_request, "-", "a request with many sequences claims rows beyond its share", "scheduler/yielding.rs":
        "!usage.has_share_beside(request.tenant, request.num_rows() - 1)" => "!usage.has_share_beside(request.tenant, 0)";
    parted_sequences_still_wait, "-", "a sibling without a row still waits for its parent", "scheduler/preempt.rs":
        "self.slots.live(parent).num_siblings -= 1;" => "self.slots.live(parent).num_siblings -= 1; self.slots.live(slot).parent = Some(parent);";
    parted_sequences_are_counted, "-", "a parent waits for a row of a sibling that left it", "scheduler/preempt.rs":
        "self.slots.live(parent).num_siblings -= 1;" => "let _ = parent;";
    what_yields_comes_back_at_once, "-", "a sequence yields and takes its row again", "scheduler/admit.rs":
        "if self.claim.claimant.is_some() {" => "if false {";
    no_turn_is_taken, "-", "a caller with many requests goes before all that come later", "request.rs":
        "time.saturating_add(timing.turn_delay)" => "time";
}
