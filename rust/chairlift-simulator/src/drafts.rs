//! Drafts, seen from outside: guesses of an answer's next tokens, drawn, proposed, planned and settled.

use chairlift_core::{
    Row, Scheduler, Slot,
    cost_model::Work,
    plan::{Plan, PlanView},
    scheduler::{MAX_DRAFTS, Next},
};

use crate::{
    client::{Client, State},
    device::{RowRun, Write},
    random::Random,
    tally::Sight,
    workload::Label,
    world::{Checked, InFlightStep, World, ensure},
};

/// Guesses of the next tokens, right ones and wrong ones, at times too many or none that are tokens.
pub(crate) fn draw(random: &mut Random, client: Option<&Client>, vocab_size: usize) -> Vec<i32> {
    let count = random.magnitude(1, 2 * MAX_DRAFTS);
    let is_right = random.pick(&[0, 512, 960, 1024, 1024]);
    let next = client.map_or(&[][..], |client| {
        &client.answer.output()[client.num_output..]
    });
    let guess = |i: usize| {
        if random.chance(4) {
            return random.pick(&[-1, i32::MIN, vocab_size as i32]);
        }
        let right = next.get(i).filter(|_| random.chance(is_right));
        right.map_or_else(|| random.below(vocab_size) as i32, |&token| token)
    };
    (0..count).map(guess).collect()
}

impl World {
    /// Proposes tokens for an answer in whatever state it is.
    pub(crate) fn draft(&mut self, label: Label, answer: usize, tokens: &[i32]) -> Checked {
        let found = self.find(label);
        let found = found.filter(|&first| answer < self.clients[first].num_sequences);
        let Some(index) = found.map(|first| first + answer) else {
            let id = chairlift_core::RequestId(u64::MAX - u64::from(label));
            ensure!(
                !self.scheduler.draft(id, 0, tokens),
                "drafts of an unknown request are taken"
            );
            self.tally.saw(Sight::DraftsRefused);
            return Ok(());
        };
        let client = &self.clients[index];
        let mut undrafted = Vec::new();
        self.scheduler.undrafted(0, &mut undrafted);
        let index_of_answer = answer as u32;
        let is_undrafted = undrafted
            .iter()
            .any(|draft| (draft.request, draft.index) == (client.id, index_of_answer));
        let is_taken = if tokens.len().is_multiple_of(2) {
            self.scheduler
                .draft_by_model(client.id, index_of_answer, tokens)
        } else {
            self.scheduler.draft(client.id, index_of_answer, tokens)
        };
        ensure!(
            is_taken || !is_undrafted,
            "#{label} wants drafts of a draft model and takes none"
        );
        let expected = self.scenario.config.max_step_drafts > 0
            && client.state == State::Running
            && client.in_flight == 0
            && client.num_output > 0
            && client.num_pending() == 1;
        let is_known = self.scenario.config.steps_in_flight == 1;
        ensure!(
            is_taken == expected || !is_known,
            "drafts of #{label} are taken: {is_taken}, expected {expected}"
        );
        ensure!(
            !is_taken || (expected && client.is_live()),
            "drafts of #{label} are taken, and it does not decode"
        );
        self.tally.saw(if is_taken {
            Sight::DraftsTaken
        } else {
            Sight::DraftsRefused
        });
        if is_taken {
            let vocab_size = self.scenario.config.vocab_size as i32;
            let known = tokens.iter().copied();
            let known = known.take_while(|token| (0..vocab_size).contains(token));
            self.clients[index].drafts = known.take(MAX_DRAFTS).collect();
        }
        Ok(())
    }

    /// The drafts of a row in a step are the first that were proposed, and no more than can be accepted.
    pub(crate) fn check_drafts(&mut self, index: usize, run: &RowRun) -> Checked {
        let planned = self.device.drafts(run);
        let client = &self.clients[index];
        let (label, proposed) = (client.label, &client.drafts);
        if proposed.is_empty() {
            let num_known = client.answer.num_prompt + client.num_output;
            let known = &client.answer.tokens[..num_known];
            ensure!(
                planned.is_empty() || self.scenario.config.prompt_lookup && follows(known, planned),
                "the drafts {planned:?} of #{label} follow nothing that it has"
            );
        } else {
            ensure!(
                proposed.starts_with(planned),
                "the drafts of #{label} are {planned:?}, proposed are {proposed:?}"
            );
        }
        let left =
            (client.answer.limit - client.num_output).min(client.credit_left(client.num_output));
        ensure!(
            planned.is_empty() || planned.len() < left,
            "#{label} has {} drafts, and may have {left} more tokens",
            planned.len()
        );
        let num_planned = planned.len();
        let num_cut = proposed.len().saturating_sub(num_planned);
        let num_looked_up = if proposed.is_empty() { num_planned } else { 0 };
        self.tally.add(Sight::DraftsLookedUp, num_looked_up as u64);
        let is_one_of_several = client.num_sequences > 1 && num_planned > 0;
        self.tally.add(Sight::DraftsPlanned, num_planned as u64);
        self.tally.add(Sight::DraftsCut, num_cut as u64);
        self.tally
            .add(Sight::DraftsOfSeveral, u64::from(is_one_of_several));
        Ok(())
    }

    /// What the scheduler would plan without drafts, if any are proposed.
    pub(crate) fn plan_without_drafts(&self) -> Option<WithoutDrafts> {
        let mut live = self.live.iter().map(|&index| &self.clients[index]);
        let is_proposed = live.any(|client| client.in_flight == 0 && !client.drafts.is_empty());
        // A clone takes longer than a step: of drafts that may have been looked up some are compared.
        let may_look_up =
            self.scenario.config.prompt_lookup && self.tally.steps().is_multiple_of(8);
        if !is_proposed && !may_look_up {
            return None;
        }
        let mut twin: Scheduler = self.scheduler.clone();
        twin.set_max_step_drafts(0);
        let mut plan = Plan::default();
        let mut buffer = vec![0; Plan::capacity(&self.scenario.config)];
        let next = twin.schedule(self.now, &mut plan);
        let length = plan.encode(&mut buffer);
        buffer.truncate(length);
        let running = twin.running().collect();
        matches!(next, Next::Run(_)).then_some(WithoutDrafts {
            plan: buffer,
            running,
        })
    }

    /// Where steps have a budget of time drafts do not go beyond it.
    pub(crate) fn check_time_of_drafts(&self, runs: &[RowRun]) -> Checked {
        let Some(budget) = self.scenario.config.step_budget else {
            return Ok(());
        };
        let works = runs.iter().map(|run| Work {
            samples: run.sampled.len() as u64,
            ..Work::of(run.start, run.end - run.start)
        });
        let work = works.fold(Work::default(), Work::and);
        let time = self.scheduler.costs().predict(work);
        let has_drafts = runs.iter().any(|run| run.num_drafts > 0);
        ensure!(
            !has_drafts || time <= budget as f64 + 1.0 + 1e-6 * time,
            "a step with drafts is predicted to take {time:.0} of {budget} ns"
        );
        Ok(())
    }

    /// Where drafts take blocks, a free block is left in each KV group for each running request.
    pub(crate) fn check_blocks_of_drafts(&self, runs: &[RowRun]) -> Checked {
        let config = &self.scenario.config;
        let num_blocks = |tokens: usize| tokens.div_ceil(config.block_size);
        let takes = |run: &RowRun| num_blocks(run.end) > num_blocks(run.end - run.num_drafts);
        let left = self.scheduler.load().num_free_blocks;
        let needed = self.scheduler.running().count() * config.kv_groups.len();
        ensure!(
            config.steps_in_flight > 1 || left >= needed || !runs.iter().any(takes),
            "drafts leave {left} free blocks, the next tokens of running requests may take {needed}"
        );
        Ok(())
    }

    /// The row of an answer goes on elsewhere than where its last step ended.
    pub(crate) fn moves(&mut self, &[row, slot, answer, start, ..]: &[i32; 5]) -> Checked<bool> {
        let Some(index) = self.rows[row as usize] else {
            return Ok(false);
        };
        let holds_client = self.by_slot[slot as usize] == index;
        let client = &mut self.clients[index];
        if !holds_client || client.state != State::Running || answer as usize != client.index {
            return Ok(false);
        }
        if client.is_rolled_back {
            client.restart(start as usize);
            self.check_start(index, start as usize)?;
            return Ok(true);
        }
        ensure!(
            std::mem::take(&mut client.is_moved),
            "#{} is assigned its row again without drafts",
            client.label
        );
        ensure!(
            start as usize == client.num_computed,
            "#{} goes on at {start} after drafts, expected {}",
            client.label,
            client.num_computed
        );
        Ok(true)
    }

    /// Which of a row's sampled tokens count: those up to the first that differs from its draft, or the last that is
    /// finite. What was written behind the accepted drafts is anything from now on.
    pub(crate) fn settle(
        &mut self,
        index: usize,
        run: &RowRun,
        num_finite: usize,
        writes: &[Write],
    ) -> usize {
        let client = &mut self.clients[index];
        let drafts = client.leave_drafts();
        if run.num_drafts == 0 {
            return num_finite;
        }
        let pairs = run.sampled.iter().zip(&drafts);
        let num_right = pairs.take_while(|(token, draft)| token == draft).count();
        let num_taken = num_finite.min(num_right + 1);
        if num_taken == 0 {
            return 0;
        }
        self.device.scribble(
            run.writes_behind(writes, run.end - run.start - run.num_drafts + num_taken - 1),
        );
        self.tally.add(Sight::DraftsAccepted, num_taken as u64 - 1);
        self.tally.add(
            Sight::DraftsRejected,
            (run.num_drafts + 1 - num_taken) as u64,
        );
        num_taken
    }

    /// After drafts all but the last of the tokens are computed, and the runner counts otherwise.
    pub(crate) fn place_after_drafts(&mut self, index: usize, num_taken: usize) {
        let client = &mut self.clients[index];
        client.num_computed += num_taken - 1;
        client.is_moved = true;
        let due = client.due.as_ref();
        let is_amid = due.is_some_and(|due| due.end.is_some() && due.num_tokens < num_taken);
        self.tally.add(Sight::DraftsPastEnd, u64::from(is_amid));
    }

    /// How many of a row's samples are finite before the first that is not.
    pub(crate) fn num_finite(
        &mut self,
        run: &RowRun,
        index: usize,
        not_finite: &[Label],
        flight: &InFlightStep,
    ) -> usize {
        let client = &self.clients[index];
        // Of several answers some.
        let is_chosen = client.num_sequences == 1 || client.index % 2 == 1;
        if !not_finite.contains(&client.label) || !is_chosen {
            return run.sampled.len();
        }
        let num_finite = self.tally.steps() as usize % run.sampled.len();
        let num_tokens = run.end - run.start - run.num_drafts;
        // Of a row without drafts nothing is good.
        let num_good = if num_finite == 0 {
            0
        } else {
            num_tokens + num_finite - 1
        };
        self.device
            .scribble(run.writes_behind(&flight.writes, num_good));
        self.device.states.scribble(run.row, &flight.saves);
        self.tally.saw(Sight::NotFinite);
        self.tally
            .add(Sight::DraftsNotFinite, u64::from(num_finite > 0));
        num_finite
    }
}

/// A step as it is without drafts: its plan, and which sequences hold which row after it.
pub(crate) struct WithoutDrafts {
    plan: Vec<i32>,
    running: Vec<(Slot, Row)>,
}

/// The drafts go on as the tokens did where a last part of them stood before.
fn follows(known: &[i32], drafts: &[i32]) -> bool {
    let all = [known, drafts].concat();
    let last = known.len() - 1;
    let goes_on = |place: usize| all[place..].starts_with(&all[last..]);
    (0..last).any(goes_on)
}

/// Drafts change nothing but their own rows: which requests are in the step, admitted or ended, and how many tokens each
/// computes beside them.
pub(crate) fn check_beside_drafts(
    view: &PlanView<'_>,
    scheduler: &Scheduler,
    without: &WithoutDrafts,
) -> Checked {
    let runs_alike = scheduler.running().eq(without.running.iter().copied());
    let without = PlanView::parse(&without.plan).map_err(|error| error.0)?;
    let counts = view.num_tokens.iter().zip(view.draft_counts);
    let counts: Vec<_> = counts.map(|(count, drafts)| count - drafts).collect();
    ensure!(
        view.rows == without.rows && counts == without.num_tokens,
        "with drafts rows {:?} compute {counts:?} tokens, without {:?} and {:?}",
        view.rows,
        without.rows,
        without.num_tokens
    );
    ensure!(
        runs_alike && view.assigned == without.assigned && view.copies == without.copies,
        "with drafts other requests are admitted or preempted"
    );
    let plain = without.block_updates.iter();
    let mut plain = plain.map(|update| view.block_updates.contains(update));
    ensure!(
        plain.all(|is_there| is_there),
        "with drafts a block goes elsewhere"
    );
    Ok(())
}
