//! The invariants that the world checks from outside, most of them at every event.

use chairlift_core::{Load, RequestStats};

use crate::{
    client::{Client, State},
    device::RowRun,
    oracle::first_visible,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// One row of a step: the right tokens at the right positions over the right KV, and a sample where one is due.
    pub(crate) fn check_run(&mut self, run: &RowRun, number: u64) -> Checked<usize> {
        let index =
            self.rows[run.row].ok_or_else(|| format!("row {} is in the step and free", run.row))?;
        self.check_drafts(index, run)?;
        let client = &self.clients[index];
        let (label, start, end) = (client.label, run.start, run.end - run.num_drafts);
        ensure!(
            client.state == State::Running,
            "#{label} is in the step and does not run"
        );
        ensure!(
            self.by_slot[run.slot] == index,
            "row {} has the slot of another request than #{label}",
            run.row
        );
        ensure!(
            run.index == client.index,
            "#{label} computes answer {} in the row of answer {}",
            run.index,
            client.index
        );
        ensure!(
            start == client.num_computed,
            "#{label} goes on at {start}, expected {}",
            client.num_computed
        );
        ensure!(
            start < end && end <= start + client.num_pending(),
            "#{label} computes [{start}..{end}), {} tokens are pending",
            client.num_pending()
        );
        let inputs = &self.device.input_ids(run)[..end - start];
        let expected = &client.answer.tokens[start..end];
        ensure!(
            inputs == expected,
            "#{label} computes tokens {inputs:?} at {start}, expected {expected:?}"
        );
        let num_groups = self.scenario.config.kv_groups.len();
        for (group, (seen, expected)) in run.seen(0).zip(client.answer.views(end)).enumerate() {
            ensure!(
                seen == expected || group < num_groups,
                "#{label} has a recurrent state that is not its own before position {end}"
            );
            ensure!(
                seen == expected,
                "#{label} read KV that is not its own before position {end} (KV group {group})"
            );
        }
        let (samples, last) = (!run.sampled.is_empty(), end == client.num_tokens());
        ensure!(
            samples == last,
            "#{label} computes up to {end} of {} tokens, samples: {samples}",
            client.num_tokens()
        );
        let drafts = self.device.drafts(run).to_vec();
        let client = &mut self.clients[index];
        client.num_computed = run.end;
        client.drafts = drafts;
        client.num_sampled += usize::from(samples);
        client.started = true;
        client.wait.start(self.latest);
        client.last_step = number;
        client.in_flight += 1;
        let wait = client.wait;
        for other in self.waiting_siblings(index) {
            self.clients[other].started = true;
            self.clients[other].wait = wait;
        }
        Ok(index)
    }

    /// An idle scheduler with no step in flight has nothing that could run, and says when that changes.
    pub(crate) fn check_idle(&mut self, wake_at: Option<u64>) -> Checked {
        if !self.in_flight_steps.is_empty() {
            return Ok(());
        }
        let num_running = self.runnable().count();
        ensure!(num_running == 0, "idle, and {num_running} requests run");
        let mut times: Vec<_> = self.gate_opens(false).into_iter().collect();
        for &index in &self.live {
            let client = &self.clients[index];
            ensure!(
                !client.is_preempted(),
                "idle, and #{} waits after a preemption",
                client.label
            );
            let queue_deadline = client.queue_deadline.filter(|_| !client.started);
            times.extend(client.deadline.into_iter().chain(queue_deadline));
        }
        ensure!(
            wake_at.is_none_or(|time| time > self.now),
            "idle until now: it would spin"
        );
        let Some(first) = times.into_iter().min() else {
            return Ok(());
        };
        ensure!(
            first > self.now,
            "idle, and a waiting request may be admitted"
        );
        ensure!(
            wake_at.is_some_and(|time| time <= first),
            "idle until {wake_at:?}, something is due at {first}"
        );
        Ok(())
    }

    /// Counts that must agree with the world's after every event.
    pub(crate) fn check_load(&self) -> Checked {
        let (load, config) = (self.scheduler.load(), &self.scenario.config);
        let (waiting, running) = (load.num_waiting, load.num_running);
        let live = self.live.len();
        ensure!(
            waiting + running == live,
            "{waiting} wait, {running} run, {live} requests live"
        );
        let max_waiting = config.max_queued_requests + config.max_num_seqs;
        ensure!(
            waiting <= max_waiting,
            "{waiting} requests wait, the cap is {max_waiting}"
        );
        ensure!(
            load.num_rows_held <= config.max_num_seqs,
            "{} rows are held",
            load.num_rows_held
        );
        ensure!(
            load.num_free_blocks <= load.num_blocks,
            "{} blocks are free",
            load.num_free_blocks
        );
        ensure!(
            load.num_cached_blocks <= load.num_blocks,
            "{} blocks are cached",
            load.num_cached_blocks
        );
        if config.steps_in_flight == 1 {
            let expected = self.running.len();
            ensure!(
                running == expected,
                "{running} requests run, expected {expected}"
            );
            self.check_counts(&load)?;
        }
        self.check_host()?;
        let mut suspended = (0, 0);
        for client in self.live.iter().map(|&index| &self.clients[index]) {
            match client.state {
                _ if !client.is_suspended() => {}
                State::Waiting if client.waits_for_parent => {}
                State::Running => suspended.1 += 1,
                State::Waiting | State::Ended => suspended.0 += 1,
            }
        }
        let counted = (load.num_waiting_suspended, load.num_running_suspended);
        ensure!(
            counted == suspended || config.steps_in_flight > 1,
            "(waiting, running) and suspended are {counted:?}, expected {suspended:?}"
        );
        let prefix = (load.num_prefix_queries, load.num_prefix_hits);
        let expected = (self.num_prefix_queries, self.num_prefix_hits);
        ensure!(
            prefix == expected,
            "(prefix queries, hits) are {prefix:?}, expected {expected:?}"
        );
        if live == 0 && self.in_flight_steps.is_empty() {
            let (free, all) = (load.num_free_blocks, load.num_blocks);
            ensure!(
                free == all,
                "no request is live, and {} blocks are not free",
                all - free
            );
            ensure!(
                load.num_rows_held == 0,
                "no request is live, and {} rows are held",
                load.num_rows_held
            );
            ensure!(
                load.num_waiting_tokens == 0,
                "no request waits, and {} tokens do",
                load.num_waiting_tokens
            );
        }
        Ok(())
    }

    /// Counts that the world knows where no step is planned ahead.
    fn check_counts(&self, load: &Load) -> Checked {
        let waiting = self.live.iter().map(|&index| &self.clients[index]);
        let waiting =
            waiting.filter(|client| client.state == State::Waiting && !client.waits_for_parent);
        let (tokens, expected) = (
            load.num_waiting_tokens,
            waiting
                .map(|client| client.answer.num_prompt + client.num_output)
                .sum::<usize>(),
        );
        ensure!(
            tokens == expected,
            "{tokens} tokens wait, expected {expected}"
        );
        let (preemptions, expected) = (load.num_preemptions, self.tally.get(Sight::Preemptions));
        ensure!(
            preemptions == expected,
            "{preemptions} preemptions are counted, expected {expected}"
        );
        if self.in_flight_steps.is_empty() {
            let config = &self.scenario.config;
            let running = self.running.iter().map(|&index| &self.clients[index]);
            let max_written: usize = running.map(|client| self.num_kept(client)).sum();
            let written = load.num_kv_tokens;
            // Answers share what they have of a prompt.
            let mut running = self.running.iter().map(|&index| &self.clients[index]);
            let is_known = running.all(|client| client.num_sequences == 1);
            let num_used = load.num_blocks - load.num_free_blocks;
            let running = self.running.iter().map(|&index| &self.clients[index]);
            let max_blocks: usize = running.map(|client| self.num_held(client)).sum();
            ensure!(
                !is_known || num_used <= max_blocks,
                "{num_used} blocks are in use, {max_blocks} hold what requests have computed"
            );
            ensure!(
                !is_known
                    || (written <= max_written && (written == max_written || config.prefix_cache)),
                "{written} KV slots are written, expected {max_written}"
            );
        }
        Ok(())
    }

    /// KV slots of what a request has computed and may still see, in whole blocks.
    fn num_kept(&self, client: &Client) -> usize {
        let block_size = self.scenario.config.block_size;
        let groups = self.scenario.config.kv_groups.iter();
        let behind = |group| {
            let first = first_visible(group, client.num_computed);
            first - first % block_size
        };
        groups
            .map(|&group| client.num_computed - behind(group))
            .sum()
    }

    pub(crate) fn check_deep(&mut self) -> Checked {
        self.tally.saw(Sight::DeepChecks);
        self.check_states()?;
        self.check_mirror()?;
        self.scheduler
            .check_invariants()
            .map_err(|violation| violation.0)
    }

    pub(crate) fn check_account(&self, index: usize, stats: &RequestStats) -> Checked {
        let client = &self.clients[index];
        let label = client.label;
        let counts = (
            stats.prompt_tokens,
            stats.output_tokens,
            stats.num_preemptions,
            stats.num_recomputed_tokens,
        );
        let num_prompt = if client.index == 0 {
            client.answer.num_prompt
        } else {
            0
        };
        let expected = (
            num_prompt,
            client.num_output,
            client.num_preemptions,
            client.num_recomputed,
        );
        let is_seen = self.scenario.config.steps_in_flight == 1;
        ensure!(
            counts == expected || !is_seen,
            "#{label} is billed (prompt, output, preemptions, recomputed) {counts:?}, expected {expected:?}"
        );
        let times = (stats.arrival, stats.finished);
        ensure!(
            times == (client.arrival, self.now),
            "#{label} is billed for the times {times:?}"
        );
        ensure!(
            stats.cached_tokens == client.num_cached,
            "#{label} is billed {} cached tokens, expected {}",
            stats.cached_tokens,
            client.num_cached
        );
        let max_transferred = client.num_loaded.min(client.num_cached);
        ensure!(
            stats.transferred_tokens <= max_transferred,
            "#{label} is billed {} transferred tokens, at most {max_transferred} were loaded and found",
            stats.transferred_tokens
        );
        ensure!(
            stats.first_scheduled.is_some() == client.started,
            "#{label} started, its stats differs"
        );
        self.check_waits(client, stats)
    }

    /// The bill of answers that end together by an error.
    pub(crate) fn check_failed_account(&self, ended: &[usize], stats: &RequestStats) -> Checked {
        if let &[index] = ended
            && self.clients[index].num_sequences == 1
        {
            return self.check_account(index, stats);
        }
        let clients = || ended.iter().map(|&index| &self.clients[index]);
        let firsts = clients().filter(|client| client.index == 0);
        let num_prompt: usize = firsts.map(|client| client.answer.num_prompt).sum();
        let num_output: usize = clients().map(|client| client.num_output).sum();
        let counts = (stats.prompt_tokens, stats.output_tokens);
        ensure!(
            counts == (num_prompt, num_output),
            "answers are billed (prompt, output) {counts:?}, expected {:?}",
            (num_prompt, num_output)
        );
        Ok(())
    }

    /// The answers that wait for this one to compute the prompt.
    pub(crate) fn waiting_siblings(&self, index: usize) -> Vec<usize> {
        if self.clients[index].index > 0 {
            return Vec::new();
        }
        let live = self.answers(index);
        live.filter(|&other| self.clients[other].waits_for_parent)
            .collect()
    }
}
