//! Steps: what `schedule` plans is run and checked at once, what `update` and `fail` do is predicted.

use chairlift_core::{
    cost_model::Work,
    events::{EndReason, Failure},
    plan::{COPY_STATE, LOAD_STATE, PlanView, SAVE_STATE},
    scheduler::{MIN_CHUNK, Next, StepId},
};

use crate::{
    device::RowRun,
    drafts::check_beside_drafts,
    tally::Sight,
    workload::Label,
    world::{Attempt, Checked, InFlightStep, World, ensure},
};

impl World {
    /// Plans a step and runs it.
    pub(crate) fn schedule(&mut self) -> Checked {
        self.tell_time();
        let is_full = self.in_flight_steps.len() >= self.scenario.config.steps_in_flight;
        if !is_full {
            self.owe_expired();
        }
        let mut runnable = self.running.iter();
        let oldest = runnable.find(|&&index| !self.clients[index].is_suspended());
        self.attempt.oldest = self.attempt.oldest.or(oldest.copied());
        let mut plan = std::mem::take(&mut self.plan);
        let without_drafts = if is_full {
            None
        } else {
            self.plan_without_drafts()
        };
        let num_preemptions = self.scheduler.load().num_preemptions;
        let next = self.scheduler.schedule(self.now, &mut plan);
        let length = plan.encode(&mut self.buffer);
        self.plan = plan;
        self.keep_blocks()?;
        if let Some(without) = without_drafts {
            let view = PlanView::parse(&self.buffer[..length]).map_err(|error| error.0)?;
            check_beside_drafts(&view, &self.scheduler, &without)?;
        }
        if !is_full {
            self.note_rows();
        }
        self.collect()?;
        self.note_preempted(num_preemptions);
        match next {
            Next::Idle { wake_at } => {
                self.tally.saw(Sight::Idle);
                self.attempt.is_repeated |= !is_full && !self.in_flight_steps.is_empty();
                self.idle = Some(next);
                self.hash(wake_at.unwrap_or(1));
                if self.takes_notes {
                    self.note = Some(format!("idle, wake at {wake_at:?}"));
                }
                if is_full {
                    Ok(())
                } else {
                    self.check_idle(wake_at)
                }
            }
            Next::Run(step) => {
                ensure!(
                    !is_full,
                    "a step is planned beyond those that may be in flight"
                );
                let buffer = std::mem::take(&mut self.buffer);
                let flown = self.fly(step, &buffer[..length]);
                self.buffer = buffer;
                self.attempt = Attempt::default();
                flown
            }
        }
    }

    /// Deadlines are looked at whenever a step is planned.
    fn owe_expired(&mut self) {
        let due = |time: Option<u64>| time.is_some_and(|time| time <= self.now);
        let reason = |&index: &usize| {
            let client = &self.clients[index];
            let waited = due(client.queue_deadline) && !client.started;
            let timeout = waited.then_some(EndReason::Failed(Failure::QueueTimeout));
            let reason = if due(client.deadline) {
                Some(EndReason::TimeLimit)
            } else {
                timeout
            };
            reason.map(|reason| (index, reason))
        };
        let expired: Vec<_> = self.live.iter().filter_map(reason).collect();
        for (index, reason) in expired {
            self.owe_end(index, &reason);
        }
    }

    fn fly(&mut self, step: StepId, plan: &[i32]) -> Checked {
        for &word in plan {
            self.hash(word as u64);
        }
        self.tally.saw(Sight::Steps);
        if !self.in_flight_steps.is_empty() {
            self.tally.saw(Sight::Pipelined);
        }
        let number = self.tally.steps();
        let view = PlanView::parse(plan).map_err(|error| error.0)?;
        let freed = view.block_updates.iter().filter(|update| update[3] == 0);
        self.tally.add(Sight::Trimmed, freed.count() as u64);
        self.tally.add(Sight::Copies, view.copies.len() as u64);
        let (num_out, num_in) = (view.swap_out.len(), view.swap_in.len());
        self.tally.add(Sight::SwappedOut, num_out as u64);
        self.tally.add(Sight::SwappedIn, num_in as u64);
        let saves = self.note_states(&view);
        let before = self.check_rows(&view)?;
        let mut writes = Vec::new();
        let (clients, by_slot) = (&self.clients, &self.by_slot);
        let root = |slot: usize| clients[by_slot[slot]].root;
        let runs = self.device.run(plan, root, &mut writes)?;
        let mut in_step = Vec::with_capacity(runs.len());
        for run in &runs {
            in_step.push(self.check_run(run, number)?);
        }
        if self.takes_notes {
            self.note = Some(self.describe(step, &view, &runs));
        }
        let time_is_spent = self.check_time(&runs)?;
        self.check_time_of_drafts(&runs)?;
        self.check_blocks_of_drafts(&runs)?;
        let num_drafts: i32 = view.draft_counts.iter().sum();
        let num_claimed = self.check_deferred(&before, &runs)?;
        self.check_parts(&before, &runs)?;
        self.in_flight_steps.push_back(InFlightStep {
            step,
            runs,
            clients: in_step,
            writes,
            saves,
        });
        self.check_idle_preempted(&before, &view)?;
        self.check_fairness(&before, number)?;
        if time_is_spent {
            return Ok(());
        }
        let num_tokens = view.input_ids.len() - num_drafts as usize;
        self.check_none_lacks_its_share(&before, num_tokens)?;
        self.check_none_is_without_a_row(&before, num_tokens)?;
        self.check_work_is_conserved(&before, num_tokens - num_claimed)
    }

    /// Counts what happens to recurrent states; returns what is saved.
    fn note_states(&mut self, view: &PlanView<'_>) -> Vec<[i32; 3]> {
        let of = |kind| move |update: &&[i32; 3]| update[1] == kind;
        let updates = || view.state_updates.iter();
        for (sight, kind) in [
            (Sight::StatesLoaded, LOAD_STATE),
            (Sight::StatesCopied, COPY_STATE),
            (Sight::StatesSaved, SAVE_STATE),
        ] {
            let count = updates().filter(of(kind)).count();
            self.tally.add(sight, count as u64);
        }
        updates().filter(of(SAVE_STATE)).copied().collect()
    }

    /// A step is not predicted to take longer than it may, but for its decodes and one least chunk; gives whether no other
    /// token fits. All without its drafts.
    fn check_time(&mut self, runs: &[RowRun]) -> Checked<bool> {
        let Some(budget) = self.scenario.config.step_budget else {
            return Ok(false);
        };
        let count = |run: &RowRun| run.end - run.start - run.num_drafts;
        let works = runs.iter().map(|run| Work {
            samples: (run.sampled.len() - run.num_drafts) as u64,
            ..Work::of(run.start, count(run))
        });
        let costs = self.scheduler.costs();
        let time = costs.predict(works.fold(Work::default(), Work::and));
        let chunks = runs.iter().map(count);
        let num_chunked: usize = chunks.filter(|&count| count > 1).sum();
        let (max_time, rounding) = (budget as f64, 1.0 + 1e-6 * time);
        ensure!(
            time <= max_time + rounding || num_chunked <= MIN_CHUNK,
            "the step computes {num_chunked} tokens of prompts and is predicted to take {time:.0} of {budget} ns"
        );
        let is_spent = time + costs.added(Work::sampled(0, 1)) > max_time - rounding;
        self.tally.add(Sight::TimeSpent, u64::from(is_spent));
        Ok(is_spent)
    }

    /// Reports the oldest step in flight: each sample slot gives a token, those of `not_finite` none.
    pub(crate) fn update(&mut self, not_finite: &[Label]) -> Checked {
        let Some(flight) = self.in_flight_steps.pop_front() else {
            return Ok(());
        };
        let changed = self.device.changed(&flight.writes);
        ensure!(
            changed.is_none(),
            "KV slot {} is overwritten while its step is in flight",
            changed.unwrap_or(0)
        );
        for (run, &index) in flight.runs.iter().zip(&flight.clients) {
            let client = &self.clients[index];
            ensure!(
                !client.is_live() || self.device.still_sees(run, client.root),
                "what #{} reads is overwritten while its step is in flight",
                client.label
            );
        }
        let mut sampled = Vec::new();
        self.scored.clear();
        for (run, &index) in flight.runs.iter().zip(&flight.clients) {
            let scored = run.scored.iter();
            let scored = scored.map(|&(position, token)| (index, position, token));
            self.scored.extend(scored);
            if run.sampled.is_empty() {
                let client = &mut self.clients[index];
                client.in_flight = client.in_flight.saturating_sub(1);
                client.swaps_in = false;
                continue;
            }
            let first_slot = sampled.len();
            sampled.extend(&run.sampled);
            let num_finite = self.num_finite(run, index, not_finite, &flight);
            if let Some(token) = sampled[first_slot..].get_mut(num_finite) {
                *token = -1;
            }
            let num_taken = self.settle(index, run, num_finite, &flight.writes);
            let client = &mut self.clients[index];
            client.in_flight = client.in_flight.saturating_sub(1);
            client.swaps_in = false;
            let is_over = !client.is_live() || client.is_ending();
            if is_over {
                self.tally.saw(Sight::Overshoots);
            } else if num_taken == 0 {
                self.owe_failure(index, Failure::NumericFault);
            } else if run.num_drafts > 0 {
                self.take(index, num_taken);
                self.place_after_drafts(index, num_taken);
            } else {
                self.fork(index);
                self.take(index, 1);
            }
        }
        self.scheduler
            .update(self.now, flight.step, &sampled)
            .map_err(|error| error.to_string())?;
        self.keep_blocks()
    }

    /// A client gets so many tokens, of which it awaits one.
    fn take(&mut self, index: usize, num_tokens: usize) {
        let client = &mut self.clients[index];
        client.num_sampled += num_tokens - 1;
        let due = client.due_after(num_tokens);
        let is_short = client.num_output + num_tokens < client.answer.num_output;
        self.tally.add(
            Sight::PaidToTheEnd,
            u64::from(is_short && due.end.is_some()),
        );
        self.owe(index, due);
        if self.clients[index].is_ending() {
            self.deal_unspent(index);
        }
    }

    /// The prompt is computed: siblings go on from its last token.
    fn fork(&mut self, index: usize) {
        for other in self.waiting_siblings(index) {
            let client = &mut self.clients[other];
            client.waits_for_parent = false;
            client.num_computed = client.answer.num_prompt - 1;
            self.tally.saw(Sight::Forks);
        }
    }

    /// The oldest step fails, and with it later ones, which read what it wrote.
    pub(crate) fn fail(&mut self, failing: &[Label]) -> Checked {
        let Some(oldest) = self.in_flight_steps.front().map(|flight| flight.step) else {
            return Ok(());
        };
        self.tally.saw(Sight::FailedSteps);
        let mut failing_ids = Vec::new();
        for flight in std::mem::take(&mut self.in_flight_steps) {
            self.device.scribble(flight.writes.iter().copied());
            for run in &flight.runs {
                self.device.states.scribble(run.row, &flight.saves);
            }
            self.tally
                .add(Sight::StatesInVain, flight.saves.len() as u64);
            for &index in &flight.clients {
                let client = &mut self.clients[index];
                client.leave_drafts();
                client.in_flight = 0;
                if !client.is_live() || client.is_rolled_back || client.due.is_some() {
                    continue;
                }
                if failing.contains(&client.label) {
                    failing_ids.push(client.id);
                    self.tally.saw(Sight::Failing);
                    self.owe_failure(index, Failure::StepFailed);
                    continue;
                }
                self.roll_back(index);
            }
        }
        self.last_change = self.tally.steps();
        self.roll_back_returning();
        self.forget_swapped();
        self.device.scribble_host();
        self.scheduler
            .fail(self.now, oldest, &failing_ids)
            .map_err(|error| error.to_string())
    }

    /// Reports that do not fit are refused and change nothing.
    pub(crate) fn misreport(&mut self) -> Checked {
        let before = self.scheduler.load();
        let oldest = self.in_flight_steps.front();
        let num_samples = oldest.map_or(0, |flight| {
            let runs = flight.runs.iter();
            runs.map(|run| run.sampled.len()).sum()
        });
        let step = oldest.map_or(StepId(u64::MAX), |flight| flight.step);
        let unknown = StepId(step.0.wrapping_sub(1));
        let good = vec![0; num_samples];
        let too_many = vec![0; num_samples + 1];
        let mut wrong = vec![(unknown, &good[..]), (step, &too_many)];
        if num_samples > 0 {
            wrong.push((step, &good[1..]));
        }
        for (step, sampled) in wrong {
            ensure!(
                self.scheduler.update(self.now, step, sampled).is_err(),
                "a wrong report is taken"
            );
        }
        ensure!(
            self.scheduler.fail(self.now, unknown, &[]).is_err(),
            "an unknown step fails"
        );
        if let Some(newest) = self
            .in_flight_steps
            .back()
            .filter(|newest| newest.step != step)
        {
            ensure!(
                self.scheduler.fail(self.now, newest.step, &[]).is_err(),
                "a step fails before an older one"
            );
        }
        ensure!(
            self.scheduler.load() == before,
            "a refused report changes something"
        );
        self.tally.saw(Sight::WrongReports);
        Ok(())
    }

    /// A step as a line: each row with its request and the half-open range of its tokens, `*` where it samples.
    fn describe(&self, step: StepId, view: &PlanView<'_>, runs: &[RowRun]) -> String {
        let mut parts = vec![format!("step {}:", step.0)];
        for run in runs {
            let label = self.clients[self.by_slot[run.slot]].label;
            let star = "*".repeat(run.sampled.len());
            parts.push(format!(" #{label} [{}..{}){star}", run.start, run.end));
        }
        if !view.swap_out.is_empty() {
            parts.push(format!("; {} blocks go out", view.swap_out.len()));
        }
        for &[row, slot, _, start, ..] in view.assigned {
            let label = self.clients[self.by_slot[slot as usize]].label;
            parts.push(format!("; #{label} has row {row} from {start} on"));
        }
        parts.concat()
    }
}
