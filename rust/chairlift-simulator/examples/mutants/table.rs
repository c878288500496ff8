//! The bugs of other engines, each as the smallest change that puts it into this core.

/// A bug to put in.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// Where it happened; `-` for one that no issue tells of.
    pub(crate) peer: &'static str,
    /// What goes wrong.
    pub(crate) what: &'static str,
    /// The crate that has the file.
    pub(crate) package: &'static str,
    /// Below its `src`.
    pub(crate) file: &'static str,
    /// Text of the file, which has it once, and what takes its place.
    pub(crate) changes: &'static [(&'static str, &'static str)],
}

macro_rules! mutants {
    ($all:ident of $package:literal: $($name:ident, $peer:literal, $what:literal, $file:literal: $($old:literal => $new:literal),+;)+) => {
        pub(crate) const $all: &[Mutant] = &[$(Mutant {
            name: stringify!($name),
            peer: $peer,
            what: $what,
            package: $package,
            file: $file,
            changes: &[$(($old, $new)),+],
        }),+];
    };
}

pub(crate) use mutants;

mutants! { MUTANTS of "chairlift-core":
    // Blocks, rows and slots that never come back.
    end_keeps_blocks, "vllm#14326", "an ended request keeps its blocks", "scheduler/end.rs":
        "        self.kv.release(&mut request.table);\n        self.kv.forget" => "        self.kv.forget";
    abort_in_flight_leaks, "vllm#46283", "an abort in flight waits for a signal that never comes", "scheduler/outcome.rs":
        "if !is_live && !is_named {" => "if false {";
    failed_step_forgets_the_ended, "vllm-ascend#16662", "a failed step skips requests that have ended", "scheduler/outcome.rs":
        "                self.leave_step(item);\n            }\n            self.recycle" =>
        "                if self.slots.live(item.slot).is_live() { self.leave_step(item); }\n            }\n            self.recycle";
    abort_before_first_schedule, "vllm#18485", "only preempted requests are taken off the queue", "scheduler/end.rs":
        "        self.stop_waiting(slot);\n" => "        if self.slots.live(slot).is_preempted() { self.stop_waiting(slot); }\n";
    normal_end_leaks_its_entry, "ATOM#1441", "a request that ends normally keeps its entry", "scheduler/slots.rs":
        "        self.free.push(slot);" => "        if request.times_preempted > 0 { self.free.push(slot); }";
    half_admission_is_not_undone, "sglang#16067", "a promise stays when admission fails half-way", "kv_cache/admit.rs":
        "if promise + self.num_taken(&start) + headroom > self.num_available() {" => "if promise + self.num_taken(&start) + headroom > self.num_available() { self.promised += promise.min(self.num_available());";
    shared_block_is_not_counted, "atlas#373", "a shared block counts one owner", "kv_cache/block_pool.rs":
        "        self.references[block as usize] += 1;" => "        self.references[block as usize] = 1;";
    rows_are_held_for_ever, "vllm#45414", "held rows are not released when their batch ends", "scheduler/end.rs":
        "            self.rows.release_held();" => "";
    held_row_is_forgotten, "-", "a row that a step kept past its batch stays held", "scheduler/end.rs":
        "                self.rows.hold(row);\n                self.needs_sweep = true;" => "                self.rows.hold(row);";
    preempted_count_drifts, "vllm#45414", "an abort of a preempted request leaves the batch open", "queue.rs":
        "self.preempted.remove(&key)," => "self.preempted.contains(&place),";

    // Double frees and counts.
    free_while_shared, "vllm#42571", "a block becomes free with its last but one owner", "kv_cache/block_pool.rs":
        "        if *references == 0 {" => "        if *references <= 1 {";
    promises_drift, "vllm-ascend#14283", "promises are not taken back", "kv_cache.rs":
        "        self.promised -= table.promised;\n        table.promised = 0;" => "        table.promised = 0;";
    promises_are_ignored, "vllm-ascend#16024", "promised blocks count as free", "kv_cache.rs":
        "        self.pool.num_free() - self.promised\n" => "        self.pool.num_free()\n";
    revived_blocks_are_free, "-", "a cached free block is counted as free and as a hit", "kv_cache/admit.rs":
        "Source::Known(block) => self.pool.num_references(block) == 0," => "Source::Known(_) => false,";
    evicted_block_keeps_its_name, "vllm#4761", "a block that is given out again is still found", "kv_cache.rs":
        "        self.forget(block);\n        self.map.hold(block, 1, tenant);\n" => "        self.map.hold(block, 1, tenant);\n";
    two_blocks_of_one_name, "PYSEC-2026-4198", "a later block takes over the name of an equal one", "kv_cache/prefix_cache.rs":
        "let Entry::Vacant(entry) = entry else {\n            return false;\n        };\n        entry.insert(block);" =>
            "match entry { Entry::Vacant(entry) => { entry.insert(block); } Entry::Occupied(mut entry) => *entry.get_mut() = block }";

    // Deadlock, livelock, starvation.
    too_long_for_the_pool, "vllm#39734", "a prompt that the pool cannot hold is queued", "scheduler/add.rs":
        "        if num_prompt > max_prompt(context) {" => "        if num_prompt > 2 * max_prompt(context) {";
    whole_pool_never_fits, "vllm#1534", "a prompt that needs the whole pool waits for ever", "kv_cache/admit.rs":
        "headroom > self.num_available()" => "headroom >= self.num_available()";
    suspended_keeps_blocks, "vllm#45388", "a preempted request suspends its blocks", "scheduler/preempt.rs":
        "        self.kv.release(&mut request.table);\n" => "";
    preempts_without_gain, "vllm-ascend#16315", "a request is preempted for another that is not scheduled", "scheduler/preempt.rs":
        "            return slot != short;" => "            return false;";
    rejoins_without_headroom, "vllm#25538", "a request comes back only to be preempted", "scheduler/admit.rs":
        "num_running * kv.num_groups() + kv.room_for_next(self.tokens.len())" => "num_running * 0 + kv.room_for_next(self.tokens.len()) * 0";
    allocates_beside_the_promise, "inference-sim#963", "what was promised is asked for again", "kv_cache.rs":
        "if num_new - from_promise > self.num_available() {" => "if num_new > self.num_available() {";
    prefill_takes_the_budget, "vllm#57413", "a long prompt leaves nothing for the decodes behind it", "scheduler/budget.rs":
        "tokens: tokens - decodes.tokens as usize," => "tokens,";
    newcomers_go_first, "vllm#11067", "a request that joins counts as the oldest", "scheduler/admit.rs":
        "        scheduler.running.push(slot);" => "        scheduler.running.insert(0, slot);";
    the_oldest_pays, "-", "a request gives way though a step in flight may bring its block", "scheduler/preempt.rs":
        "self.end == index && self.scheduler.in_flight.is_empty()" => "self.end == index && self.scheduler.request(slot).in_flight == 0";
    empty_steps, "vllm#15996", "a step is planned with nothing in it", "scheduler/step.rs":
        "if self.items.is_empty() {" => "if self.items.is_empty() && scheduler.queue.len() == 0 {";
    preempted_go_last, "vllm#31731", "a preempted request queues up again", "scheduler/preempt.rs":
        "self.wait(slot, Origin::Preempted);" => "self.wait(slot, Origin::Fresh);";
    a_failed_step_preempts, "-", "a failed step is counted as a preemption", "scheduler/outcome.rs":
        "            request.runner_view = RunnerView::Restarting;\n" => "            request.runner_view = RunnerView::Restarting;\n            self.counters.num_preemptions += 1;\n";
    no_wake_up, "vllm#45387", "an idle scheduler forgets its deadlines", "scheduler/step.rs":
        "[gate_opens, scheduler.deadlines.next()]" => "[gate_opens, None]";
    gate_opens_late, "-", "a partial batch misses the time at which it is due", "policy.rs":
        "moment.now >= due" => "moment.now > due";
    flush_is_lost, "-", "a flush does not reach the request that arrived last", "scheduler/slots.rs":
        "RequestId((self.num_added + 1) * self.requests.len() as u64)" => "RequestId(self.num_added * self.requests.len() as u64)";

    // Wrong KV.
    tenants_share, "vllm#53347", "the tenant is not part of a block's name", "kv_cache/prefix_cache.rs":
        "for field in [&namespace.tenant, &namespace.salt] {" => "for field in [&namespace.salt] {";
    adapters_share, "-", "a block of another adapter is a hit", "kv_cache/prefix_cache.rs":
        "[u64::from(adapter.slot), adapter.generation]" => "[0, adapter.generation]";
    reloaded_adapter_hits, "-", "a block of an adapter's earlier load is a hit", "kv_cache/prefix_cache.rs":
        "[u64::from(adapter.slot), adapter.generation]" => "[u64::from(adapter.slot), 0]";
    siblings_lose_the_adapter, "-", "the answers of a request have the adapter of their row's last request", "scheduler/admit.rs":
        "                request.adapter,\n" => "                0,\n";
    fields_run_together, "confidential-model-router#386", "tenant and salt are joined without lengths", "kv_cache/prefix_cache.rs":
        "            hasher.update(&(field.len() as u64).to_le_bytes());\n" => "";
    names_collide, "Megatron-LM#4158", "a polynomial names blocks, and tokens are not compared", "kv_cache/prefix_cache.rs":
        "let bytes = bytemuck::cast_slice(tokens);" =>
        "let bytes = &[tokens.iter().fold(0, |sum: i32, token| sum.wrapping_mul(31).wrapping_add(*token)) as u8];",
        "self.names[block as usize].parent == parent && self.tokens(block) == tokens" => "self.names[block as usize].parent == parent";
    name_only, "openvino.genai#3722", "short names, and nothing is compared on a hit", "kv_cache/prefix_cache.rs":
        "Self(*blake3::keyed_hash(&self.0, bytes).as_bytes())" =>
        "Self([blake3::keyed_hash(&self.0, bytes).as_bytes()[0]; 32])",
        "self.names[block as usize].parent == parent && self.tokens(block) == tokens" => "true";
    constant_seed, "vllm#12621", "names of first blocks do not depend on the namespace", "kv_cache/prefix_cache.rs":
        "BlockHash(*hasher.finalize().as_bytes())" => "BlockHash([0; 32])";
    unrelated_prompt, "llama.cpp#27148", "a block is found whatever came before it", "kv_cache/prefix_cache.rs":
        "blake3::keyed_hash(&self.0, bytes)" => "blake3::keyed_hash(&[0; 32], bytes)",
        "self.names[block as usize].parent == parent && " => "";
    hit_restarts_at_zero, "ssd#23", "a prompt with cached blocks starts at position 0", "scheduler/admit.rs":
        "plan.assign(row, slot, request.index, start, request.adapter);\n        request.table" => "plan.assign(row, slot, request.index, 0, request.adapter);\n        request.table";
    hit_without_blocks, "MinivLLM#98", "cached blocks are not in the runner's block table", "kv_cache/block_table.rs":
        "for block_index in self.num_reported..self.num_indices {" => "for block_index in self.num_reported..self.num_indices.min(self.num_reported + 1) {";
    hit_covers_the_last_token, "-", "a fully cached prompt has nothing to compute", "kv_cache.rs":
        "let max_hits = (tokens.len() - 1) / self.block_size;" => "let max_hits = tokens.len() / self.block_size;";
    left_in_the_row, "GHSA-v97p-wpxp-px84", "a row's last token leaks to its next user", "request.rs":
        "        self.num_computed = 0;\n        self.runner_view = RunnerView::Current;\n" => "        self.num_computed = 0;\n        if self.runner_view != RunnerView::LastSampled { self.runner_view = RunnerView::Current; }\n";
    published_too_early, "-", "blocks are known before their step has succeeded", "scheduler/step.rs":
        "        request.num_computed = end;\n        request.in_flight" =>
        "        scheduler.kv.publish(&mut request.table, &request.tokens, end.min(request.tokens.len()));\n        request.num_computed = end;\n        request.in_flight";
    nan_is_cached, "sglang#33206", "blocks of a row that was not finite are cached", "scheduler/outcome.rs":
        "        if has_samples && tokens.is_empty()" =>
        "        self.kv.publish(&mut request.table, &request.tokens, item.end);\n        if has_samples && tokens.is_empty()";
    nan_becomes_a_token, "vllm#53029", "a row that was not finite goes on", "scheduler/outcome.rs":
        "let tokens = &sampled[..sampled.iter().take_while(is_token).count()];" => "let _ = sampled.iter().filter(is_token);\n        let tokens = sampled;";

    // Sliding windows.
    window_is_cut_short, "-", "a block is freed while the next token still sees its end", "config.rs":
        "(position + 1).saturating_sub" => "(position + 2).saturating_sub";
    window_never_slides, "-", "blocks behind a window are kept", "kv_cache.rs":
        "while group_blocks.num_freed < first {" => "while group_blocks.num_freed + 1 < first {";
    window_slides_in_flight, "-", "a block is freed by a step planned ahead, while the step before it runs", "scheduler/outcome.rs":
        ".trim(&mut request.table, request.tokens.len(), item.end)" => ".trim(&mut request.table, request.tokens.len(), request.num_computed)";
    freed_block_is_not_reported, "-", "the runner's block table keeps a block that was freed", "kv_cache/block_table.rs":
        "                update(group, block_index, NULL_BLOCK);" => "                let _ = block_index;";
    shared_window_is_promised, "-", "a block that another request still holds is promised again", "kv_cache.rs":
        "missing.min(num_free)" => "missing";
    window_hit_has_a_gap, "-", "a hit lacks blocks that the window still sees", "kv_cache/loaded.rs":
        "                suffices &= *known >= end - self.first_seen(group, end);" => "                suffices &= *known >= (end - self.first_seen(group, end)).min(1);";
    window_holds_everything, "-", "a request with a window waits until its whole prompt fits", "config.rs":
        "let tokens = written.saturating_add(window as usize - 1);" => "let tokens = written.saturating_add(window as usize - 1).saturating_mul(9);";
    step_ahead_is_not_promised, "-", "a window is promised the blocks of one step, and two are in flight", "config.rs":
        "self.steps_in_flight * self.max_num_batched_tokens" => "self.max_num_batched_tokens";

    // Several answers to a prompt.
    shared_tail_is_not_copied, "-", "answers write to a block that they share", "kv_cache/fork.rs":
        "            if self.num_owners(*tail) > 1 {" => "            if self.pool.num_references(*tail) > 9999 {";
    copy_is_not_told, "-", "the runner does not hear of a copy", "scheduler/step.rs":
        "            self.plan.copy(source, target);" => "            let _ = (source, target);";
    copied_block_is_given_out, "-", "a block is written in the plan that copies it to another answer", "kv_cache/fork.rs":
        "self.copied.push(source);" => "self.pool.release(source, false);";
    cache_knows_a_block_that_is_written, "-", "an answer writes to a block that the prefix cache knows, and the step fails", "kv_cache/fork.rs":
        "                self.forget(*tail);" => "                let _ = tail;";
    forks_too_early, "-", "answers go on from a prompt that is not computed", "scheduler/outcome.rs":
        "item.end >= request.num_prompt" => "item.end > 0";
    never_forks, "-", "answers wait for a prompt that is computed", "scheduler/outcome.rs":
        "item.end >= request.num_prompt" => "item.end > request.num_prompt";
    fork_shares_a_token_too_much, "-", "an answer begins after the last token of the prompt", "scheduler/outcome.rs":
        "sibling.num_computed = sibling.num_prompt - 1;" => "sibling.num_computed = sibling.num_prompt;";
    fork_is_not_owned, "-", "blocks of a prompt have one owner however many use them", "kv_cache/fork.rs":
        "                self.pool.share(block);\n                let references" => "                let references";
    answers_draw_alike, "-", "all answers have the index of the first", "scheduler/admit.rs":
        "                request.index,\n                request.num_prompt - 1," => "                0,\n                request.num_prompt - 1,";
    answers_join_without_rows, "-", "a request joins though not each of its answers finds a row", "request.rs":
        "        1 + self.num_siblings\n" => "        1\n";
    siblings_keep_their_rows, "-", "a preempted request leaves its waiting siblings in their rows", "scheduler/preempt.rs":
        "for sibling in self.slots.siblings(slot) {\n            self.release_row" => "for sibling in Vec::new() {\n            self.release_row";
    siblings_give_way_alone, "-", "an answer loses its row while another computes its prompt", "request.rs":
        "self.in_flight == 0 && self.is_suspended() && self.parent.is_none()" => "self.in_flight == 0 && self.is_suspended()";
    a_batch_counts_requests, "-", "a batch takes more answers than it has rows", "scheduler/admit.rs":
        "limit.saturating_sub(if resumes { 0 } else { num_rows })" => "limit.saturating_sub(usize::from(!resumes))";
    each_answer_pays_the_prompt, "-", "the prompt is on the bill of every answer", "scheduler/add.rs":
        "(sibling.stats.prompt_tokens, sibling.credit_end) = (0, share(index));" => "sibling.credit_end = share(index);";
    last_too_early, "-", "the first sequence that ends is reported as the last", "scheduler/slots.rs":
        "        is_last\n" => "        let _ = is_last;\n        true\n";
    an_error_spares_the_others, "-", "the other answers go on after an error", "scheduler/end.rs":
        "        sequences.retain(|&other| other != slot);\n        sequences.push(slot);" => "        sequences = vec![slot];";
    abort_forgets_the_first, "-", "a cancel ends the first answer alone", "scheduler/end.rs":
        "for &slot in sequences.iter().rev() {" => "for &slot in sequences.iter().take(1) {";
    unspent_credit_is_lost, "-", "what an answer leaves of the credit is lost", "scheduler/end.rs":
        "if !last && !ends_all {" => "if false && !last && !ends_all {";
    credit_is_given_n_times, "-", "each answer gets all of the credit", "scheduler/change.rs":
        "let num_sequences = slots.len() as u64;" => "let num_sequences = 1;";

    // Races between abort, end and step; names.
    freed_in_flight, "vllm#42157", "a request that a step names is released by its abort", "scheduler/end.rs":
        "        if request.in_flight == 0 {" => "        if request.in_flight <= 1 {";
    ended_stays_queued, "vllm#52969", "an aborted request is still in the queue", "scheduler/end.rs":
        "        self.stop_waiting(slot);\n" => "";
    completes_the_ended, "vllm#43226", "a step completes a request that was aborted", "scheduler/outcome.rs":
        "        if !self.leave_step(item) {\n            self.kv.drop_state(item.saved);\n            return 0;\n        }" =>
        "        let ended = !self.leave_step(item);\n        if ended && self.requests[item.slot as usize].is_none() {\n            self.kv.drop_state(item.saved);\n            return 0;\n        }";
    ids_repeat, "vllm#10583", "an id is given out twice", "scheduler/slots.rs":
        "            self.num_added += 1;\n" => "";
    stale_abort, "vllm#23697", "an abort of an ended request ends the request that has its slot now", "scheduler/slots.rs":
        "(request.id == id && request.is_live())" => "request.is_live()";
    preempts_in_flight, "-", "blocks that a step in flight writes are taken away", "scheduler/preempt.rs":
        "request.is_running() && request.in_flight == 0 && request.parent.is_none()" => "request.is_running() && request.parent.is_none()";
    row_of_a_batch_in_flight, "-", "a batch opens while a step in flight names the last", "scheduler/admit.rs":
        "let num_active = scheduler.rows.num_used() - self.num_idle_rows;" => "let num_active = scheduler.running.len() - self.num_idle_rows;";

    // Limits and recomputation.
    recompute_is_lost, "vllm#16832", "a preempted request goes on where it was", "scheduler/admit.rs":
        "let start = scheduler.kv.start(&request.table, num_hits);" => "let start = scheduler.kv.start(&request.table, num_hits).max(request.num_lost.min(request.tokens.len() - 1));";
    one_token_too_many, "-", "a step samples past max_tokens", "request.rs":
        "let end = self.num_tokens().min(self.max_num_tokens - 1);" => "let end = self.num_tokens();";
    queue_cap_is_off_by_one, "-", "the queue takes one request more than its cap", "scheduler/add.rs":
        "if self.num_waiting() + num_sequences > max {" => "if self.num_waiting() + num_sequences > max + 1 {";
    queue_deadline_of_the_running, "-", "a request that runs fails by its queue deadline", "scheduler/end.rs":
        "due(request.timing.queue_deadline) && !request.has_started" => "due(request.timing.queue_deadline)";
    stop_before_min_tokens, "-", "a stop token ends an answer before min_tokens", "request.rs":
        "if may_stop && self.stops.stop_token_ids" => "if self.stops.stop_token_ids";

    // Drafts.
    wrong_drafts_count, "-", "what was written for wrong drafts counts as computed", "scheduler/outcome.rs":
        "        request.num_computed -= (item.num_samples as usize).saturating_sub(1);\n" => "";
    wrong_draft_is_published, "-", "a block with drafts is known before they are accepted", "scheduler/outcome.rs":
        "request.accepted(tokens)" =>
        "let all = [&request.tokens[..], &request.drafting.drafts].concat();\n            self.kv.publish(&mut request.table, &all, all.len());\n            request.accepted(tokens)";
    token_after_a_wrong_draft, "-", "a token that follows a wrong draft is accepted", "scheduler/draft.rs":
        "sampled.len().min(num_right + 1)" => "sampled.len().min(num_right + 2)";
    drafts_go_first, "-", "drafts take budget and blocks of waiting requests", "scheduler.rs":
        "        step.schedule_running();\n" => "        step.schedule_running();\n        step.schedule_drafts();\n";
    wrong_drafts_keep_blocks, "-", "blocks that only wrong drafts needed are not given back", "scheduler/draft.rs":
        "        self.kv.shrink(&mut request.table, num_computed);\n" => "";
    block_after_drafts_is_not_told, "-", "the runner does not hear of a block in the place of one that was given back", "kv_cache/block_table.rs":
        "        self.num_reported = self.num_reported.min(num_indices);\n" => "";
    row_stays_behind_drafts, "-", "the runner goes on behind wrong drafts", "scheduler/draft.rs":
        "request.runner_view = RunnerView::Moved;" => "request.runner_view = RunnerView::Current;";
    stop_amid_drafts_is_missed, "-", "an answer goes on past a stop amid accepted drafts", "scheduler/outcome.rs":
        "while end.is_none() && num_taken < tokens.len() {" => "while (end.is_none() || has_drafts) && num_taken < tokens.len() {";
    window_slides_over_drafts, "-", "a block is freed that is behind the window of a draft only", "scheduler/outcome.rs":
        ".trim(&mut request.table, request.tokens.len(), item.end)" => ".trim(&mut request.table, request.tokens.len(), item.end + item.num_samples.saturating_sub(1) as usize)";
    drafts_outlive_a_preemption, "-", "drafts are kept by a request that loses its row", "request.rs":
        "        self.drafting.drafts.clear();\n" => "";
    drafts_beyond_the_credit, "-", "more drafts are computed than the credit pays for", "scheduler/draft.rs":
        "request.max_num_tokens.min(request.credit_end)" => "request.max_num_tokens";
    drafts_beyond_the_time, "-", "drafts take time that the step has not", "scheduler/budget.rs":
        "(0..=max).rev().find(fits).unwrap_or(0)" => "(0..=max).rev().find(|count| fits(count) || true).unwrap_or(0)";
    drafts_take_the_last_block, "-", "drafts make a running request lose its row", "scheduler/draft.rs":
        "scheduler.running.len() * scheduler.kv.num_groups();" => "0;";
    stale_lookup, "-", "drafts are looked up for tokens that are not the last", "speculation/lookup.rs":
        "if self.automaton.len() != tokens.len() {" => "if self.automaton.len() > tokens.len() {",
        "const MAX_PUSHED: usize = 4096;" => "const MAX_PUSHED: usize = 4;";

    // Host memory.
    host_block_is_given_out_again, "-", "a host block is written in the plan that reads it", "kv_cache/swap.rs":
        "if self.outs.is_empty() && self.ins.is_empty() {" => "if !self.outs.is_empty() || self.outs.is_empty() {";
    failed_copies_are_trusted, "-", "what a failed step should have copied is read", "scheduler/outcome.rs":
        "        for request in self.slots.iter_mut() {\n            self.kv.forget_swapped(&mut request.table);\n        }\n" => "";
    host_blocks_leak, "-", "a request that ends while it waits keeps its host blocks", "scheduler/end.rs":
        "        self.kv.forget_swapped(&mut request.table);\n" => "";
    dear_swaps, "-", "blocks are copied though computing is cheaper", "scheduler/preempt.rs":
        "both_ways as f64 <= again" => "both_ways as f64 >= 0.0";
    no_swaps, "-", "what would be cheaper is never kept", "scheduler/preempt.rs":
        "num_blocks > 0 && both_ways" => "num_blocks > usize::MAX as u64 - 1 && both_ways";
    window_shifts_host_blocks, "-", "host blocks are counted from the first block of a window", "kv_cache/block_table.rs":
        "blocks[block_index + blocks.len() - self.num_indices]" => "blocks[block_index.min(blocks.len() - 1)]";
    part_of_a_block_is_left, "-", "the last, partial block is not copied back", "kv_cache/admit.rs":
        "let num_indices = num_computed.div_ceil(self.block_size);" => "let num_indices = num_computed / self.block_size;";

    // Changes of live requests.
    paused_goes_on, "-", "a paused request is scheduled", "request.rs":
        "self.is_paused || self.num_tokens()" => "self.num_tokens()";
    credit_forgets_the_flight, "-", "tokens of steps in flight do not count against the credit", "request.rs":
        "self.num_tokens() >= self.credit_end" => "self.tokens.len() >= self.credit_end";
    the_last_credit_is_no_end, "-", "a request that has spent its last credit waits for more", "request.rs":
        "let is_spent = self.credit_is_final && " => "let is_spent = self.max_num_tokens == 0 && ";
    spent_before_the_last, "-", "a request that has spent its credit before the last one is announced waits for more", "scheduler/change.rs":
        "self.slots.live(slot).limit_reached() {" => "self.slots.live(slot).limit_reached().filter(|_| !change.credit_is_final) {";
    the_last_token_is_not_awaited, "-", "the token that the last credit pays for is on its way and dropped", "request.rs":
        "let num_tokens = self.tokens.len();" => "let num_tokens = self.num_tokens();";
    the_last_credit_of_one, "-", "the last credit is that of the first answer alone", "scheduler/change.rs":
        "request.credit_is_final |= change.credit_is_final;" => "request.credit_is_final |= change.credit_is_final && request.index == 0;";
    any_credit_is_the_last, "-", "more credit that comes is taken for the last", "scheduler/change.rs":
        "request.credit_is_final |= change.credit_is_final;" => "request.credit_is_final |= change.credit_is_final || change.credit > 0;";
    suspended_block_the_queue, "-", "a waiting request gets neither row nor blocks of a suspended one", "scheduler/preempt.rs":
        "        if self.num_idle_rows == 0 {\n            return false;" => "        if self.num_idle_rows < usize::MAX {\n            return false;";
    the_suspended_outlast_the_running, "-", "a running request is preempted though another is suspended", "scheduler/preempt.rs":
        "if let Some(slot) = self.youngest_idle() {" => "if let Some(slot) = self.youngest_idle().filter(|_| false) {";
    suspended_give_way_in_vain, "-", "suspended requests lose their rows, and the waiting request does not fit even so", "kv_cache/admit.rs":
        "(available >= needed).then_some(num_releases)" => "Some(num_releases)";
    the_oldest_suspended_gives_way, "-", "not the youngest of the suspended gives way", "scheduler/preempt.rs":
        "let running = self.running.iter().rev().copied();" => "let running = self.running.iter().copied();";
    suspended_hold_the_batch, "-", "a batch of suspended requests alone stays open", "scheduler/admit.rs":
        "let num_active = scheduler.rows.num_used() - self.num_idle_rows;" => "let num_active = scheduler.rows.num_used();";
    resumed_stays_outside, "-", "a request that may go on again is not queued", "scheduler/waiting.rs":
        "if request.is_suspended() {" => "if request.is_suspended() || matches!(request.state, State::Suspended(_)) {";
    abort_of_the_suspended_leaks, "-", "a suspended request that ends is still counted", "scheduler/waiting.rs":
        "State::Suspended(_) => self.num_suspended -= 1," => "State::Suspended(_) => {}";
    priority_is_upside_down, "-", "a higher priority waits longer", "queue.rs":
        "start_by - i128::from(priority)" => "start_by + i128::from(priority)";
    priority_does_not_age, "-", "a lower priority starves, however long it waits", "queue.rs":
        "start_by - i128::from(priority) *" => "start_by - (i128::from(priority) << 40) *";
    the_urgent_wait, "-", "a request that has to start soon waits behind one that has not", "queue.rs":
        "start_by.map_or(latest, |time| latest.min(time.into()))" => "start_by.map_or(latest, |_| latest)";
    steps_take_too_long, "-", "a chunk is cut to the budget of tokens only", "scheduler/budget.rs":
        "time as f64 - costs.predict(decodes)" => "time as f64 + costs.predict(decodes) * 1e9";
    decodes_are_free, "-", "decodes do not count against the budget of time", "scheduler/budget.rs":
        "costs.predict(decodes)" => "costs.predict(Work::default())";
    prompts_starve, "-", "a prompt gets nothing while decodes take all the time", "scheduler/budget.rs":
        "if self.has_chunk { 0 } else { MIN_CHUNK }" => "0";
    sent_to_and_fro, "vllm#25538", "a request that was preempted is preempted again at once", "scheduler/preempt.rs":
        "times_preempted: request.times_preempted," => "times_preempted: 0,";
    change_forgets_the_context, "-", "a higher limit goes beyond the context", "scheduler/change.rs":
        "end.min(self.max_context_len.max(request.num_prompt + 1))" => "end";
    lower_limit_is_missed, "-", "a limit below what there is does not end the answer", "scheduler/change.rs":
        "self.slots.live(slot).limit_reached() {" => "self.slots.live(slot).limit_reached().filter(|_| change.stopping.is_none()) {";
    moved_deadline_is_missed, "-", "a new deadline is not watched", "scheduler/change.rs":
        "                self.deadlines.push(time, request.owner);\n" => "                let _ = time;\n";
    waits_are_forgotten, "-", "the parts of a wait before its last one are lost", "scheduler/waiting.rs":
        "        self.record_wait(slot);\n" => "";
    a_pause_is_a_wait, "-", "the time of a pause is booked as waiting for the batch", "scheduler/waiting.rs":
        "        _ if self.is_suspended() => Waiter::Suspended,\n" => "";
    a_closed_gate_is_a_full_batch, "-", "a request that waits for the policy is reported to wait for a row", "scheduler/admit.rs":
        "Err(WaitCause::Policy)" => "Err(WaitCause::Row)";

    // Recurrent states.
    state_is_not_loaded, "-", "a prefix hit begins with the state that lies in its row", "scheduler/admit.rs":
        "        self.load_state(slot, row, start);\n" => "";
    stale_state_after_preemption, "vllm-metal#488", "a preempted request resumes with another's state", "scheduler/states.rs":
        "if scheduler.config.state_snapshots.is_none() || start == 0 {" => "if scheduler.config.state_snapshots.is_none() || start == 0 || scheduler.request(slot).times_preempted > 0 {";
    stale_state_after_failure, "-", "a row that begins again keeps the state of the step that failed", "scheduler/step.rs":
        "            self.load_state(slot, row, start);\n" => "";
    state_of_another_block, "vllm#53142", "a request begins with the state behind another block", "kv_cache.rs":
        "snapshots.find(&table.hashes[end - 1])" => "snapshots.find(&table.hashes[(end - 1) / 2])";
    hit_beyond_the_state, "vllm#55600", "blocks behind the last snapshot count as a hit", "kv_cache.rs":
        "snapshots.find(&table.hashes[end - 1]) {" => "snapshots.find(&table.hashes[end - 1]).or(found) {";
    state_is_saved_amid_a_block, "-", "a state is saved where no boundary is", "scheduler/states.rs":
        "if !is_saved || !end.is_multiple_of(config.block_size) {" => "if !is_saved || end < config.block_size {";
    state_is_found_one_block_early, "-", "a state is found behind the block before its own", "kv_cache/snapshots.rs":
        "table.hashes[num_computed / self.block_size - 1]" => "table.hashes[(num_computed / self.block_size).saturating_sub(2)]";
    state_of_a_failed_step, "-", "what a failed step saved is used", "scheduler/outcome.rs":
        "                self.kv.drop_state(item.saved);\n                self.leave_step(item);" =>
        "                let request = self.slots.live(item.slot);\n                if let Some(saved) = item.saved {\n                    if request.is_live() {\n                        self.kv.publish(&mut request.table, &request.tokens, item.end);\n                        self.kv.publish_state(&mut request.table, saved, item.end, false);\n                    } else {\n                        self.kv.drop_state(item.saved);\n                    }\n                }\n                self.leave_step(item);";
    state_of_an_ended_request_leaks, "-", "memory for the state of a request that has ended stays reserved", "scheduler/outcome.rs":
        "            self.kv.drop_state(item.saved);\n            return 0;\n        }\n        let request" => "            return 0;\n        }\n        let request";
    equal_state_leaks, "-", "memory for a state that is known already stays reserved", "kv_cache/snapshots.rs":
        "            self.give_back(snapshot);\n            return;" => "            return;";
    state_in_flight_is_given_out, "-", "two steps write to one snapshot", "kv_cache/snapshots.rs":
        "if let Some(snapshot) = self.free.pop() {" => "if let Some(snapshot) = self.free.last().copied() {";
    state_outlives_its_block, "-", "a snapshot is kept behind a block that is not known any more", "kv_cache.rs":
        "            snapshots.forget(&hash);\n" => "            let _ = (snapshots, hash);\n";
    forgotten_state_is_free_twice, "-", "a snapshot that is forgotten is free and found", "kv_cache/snapshots.rs":
        "self.by_hash.remove(hash) {" => "self.by_hash.get(hash).copied() {";
    sibling_has_no_state, "-", "an answer that takes over a prompt has the state of its row's last request", "scheduler/states.rs":
        "                plan.copy_state(sibling.expect(\"invariant: siblings run with it\"), row);\n" => "                let _ = (sibling, row);\n";
    siblings_begin_behind_the_prompt, "-", "siblings get the state behind the last token, and compute that again", "scheduler/states.rs":
        "request.num_siblings > 0 && start > 0 && start == request.num_prompt - 1" => "request.num_siblings > 0 && start > 0 && end == request.num_prompt",
        "let stops = saved.chain(siblings_begin);" => "let stops = saved.chain(siblings_begin.filter(|_| false));";
    unwritten_cache_has_a_state, "-", "a request that does not write the cache leaves its state there", "scheduler/states.rs":
        "has_room && request.cache_write" => "has_room && config.prefix_cache";

    // Blocks that come from a store.
    loaded_blocks_keep_a_name, "-", "a block is loaded into one that is found by its old name", "kv_cache/loaded.rs":
        "            let block = self.allocate(table.tenant);" =>
            "            let block = self.pool.allocate().expect(\"one is free\");\n            self.map.hold(block, 1, table.tenant);";
    loaded_one_place_too_early, "-", "loaded blocks are named as those before them", "kv_cache/loaded.rs":
        "table, tokens, block_index);\n            held" => "table, tokens, block_index.saturating_sub(1));\n            held";
    a_hit_is_told_as_its_neighbour, "-", "the use of a block is told with the name of another", "kv_cache/admit.rs":
        "&table.hashes[block_index], true" => "&table.hashes[0], true";
    loaded_blocks_are_never_free, "-", "what is loaded keeps an owner", "kv_cache/loaded.rs":
        "        for block in held.into_iter().rev() {" => "        for block in held.into_iter().rev().skip(1) {";
    state_is_told_as_another, "-", "a state is told by the name of the one behind the first block", "kv_cache/snapshots.rs":
        "self.note_state_use(known, &hash, false);" => "self.note_state_use(known, &table.hashes[0], false);";
    state_is_filled_one_block_early, "-", "a state that comes from outside is found behind the block before its own", "kv_cache/loaded.rs":
        "snapshots.publish(snapshot, *hash);" => "snapshots.publish(snapshot, table.hashes[last.saturating_sub(1)]);";
    state_is_filled_behind_no_block, "-", "a state that comes from outside is known though its blocks are not", "kv_cache/loaded.rs":
        "if !self.prefix_cache.has_name(hash) || snapshots" => "if snapshots";
    beginning_lacks_its_state, "-", "a beginning is loaded that the store has no state behind", "kv_cache/loaded.rs":
        "if end > first && has_state(end) {" => "if end > first {\n                let _ = &has_state;";
    beginning_lacks_its_window, "-", "the whole prompt is loaded of which the store has a beginning", "kv_cache/loaded.rs":
        "self.named(log, table, first, longest)" => "self.named(log, table, first, max_hits)";
    loaded_by_numbers_of_another_beginning, "-", "blocks of a beginning are named as those of the whole prompt", "scheduler/loading.rs":
        "let wanted = request.inserted.wanted;" => "let wanted = (request.tokens.len() - 1) / self.config.block_size;";

    // What consumers of block events believe.
    evicted_blocks_are_still_told, "-", "the eviction of a block is not told", "kv_cache.rs":
        "        self.report_removed(block);\n" => "";
    blocks_are_told_without_parents, "-", "each block is told as the first of a prompt", "kv_cache/block_log.rs":
        "parent: parent.map(|parent| self.handle(parent))," => "parent: None,";
    salted_blocks_are_told, "-", "blocks that only requests with a salt find are told", "kv_cache/block_log.rs":
        "namespace.salt.is_empty().then_some(" => "true.then_some(";
    blocks_of_any_tenant_are_told, "-", "blocks of a tenant that is not shared are told", "kv_cache/block_log.rs":
        "tenants.position(|tenant| *tenant == namespace.tenant)?" => "tenants.position(|_| true)?";
}

mutants! { OF_TEXT of "chairlift-text":
    held_text_is_lost, "-", "new stops throw away what the old ones held back", "text_state.rs":
        ".map_or(String::new(), |old| old.held)" => ".map_or(String::new(), |old| { drop(old.held); String::new() })";
    new_stops_miss_the_held, "-", "a new stop that begins in held text is not found", "text_state.rs":
        "        matcher.feed(&held, false);\n" => "";
}
