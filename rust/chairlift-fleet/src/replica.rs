//! One replica: a real scheduler, and the time to which it has run.

use std::{collections::VecDeque, mem};

use chairlift_core::Nanos;

use crate::{
    command::{Command, Context},
    engine::Engine,
    outcomes::{NEVER, Outcomes},
};

#[derive(Clone)]
pub(crate) struct Replica {
    number: usize,
    engine: Option<Box<Engine>>,
    /// The time to which it has run: of a step that has begun, its end.
    now: Nanos,
    /// It has nothing to run; at `wake_at` there may be something, even if nothing is told before.
    is_idle: bool,
    wake_at: Option<Nanos>,
    inbox: VecDeque<(Nanos, Command)>,
    /// Requests that ended at `now`.
    just_ended: Vec<u32>,
}

impl Replica {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            number,
            engine: None,
            now: 0,
            is_idle: true,
            wake_at: None,
            inbox: VecDeque::new(),
            just_ended: Vec::new(),
        }
    }

    pub(crate) fn tell(&mut self, time: Nanos, command: Command) {
        self.inbox.push_back((time, command));
    }

    /// Requests that it has, those on the way included.
    pub(crate) fn num_requests(&self) -> usize {
        let adds = self
            .inbox
            .iter()
            .filter(|(_, command)| matches!(command, Command::Add(_)));
        adds.count() + self.engine.as_ref().map_or(0, |engine| engine.live.len())
    }

    /// When it has something to do next; None is never.
    pub(crate) fn next_time(&self) -> Option<Nanos> {
        if !self.is_idle {
            return Some(self.now);
        }
        let told = self.inbox.front().map(|&(time, _)| time);
        let due = [self.wake_at, told].into_iter().flatten().min()?;
        Some(due.max(self.now))
    }

    /// Runs until it has nothing to do before `until`, or has something to tell others. A step that begins before ends after
    /// it: what is told meanwhile comes between two steps, as to a server.
    pub(crate) fn advance(&mut self, until: Nanos, context: &mut Context<'_>) {
        while let Some(time) = self.next_time().filter(|&time| time < until) {
            self.now = time;
            let engine = self
                .engine
                .get_or_insert_with(|| Box::new(Engine::new(self.number, context)));
            self.just_ended.clear();
            let num_ended = context.ended.len();
            while let Some(&(time, command)) = self.inbox.front()
                && time <= self.now
            {
                self.inbox.pop_front();
                engine.execute(self.now, command, context);
            }
            match engine.step(self.now, context, self.number) {
                Ok(end) => (self.now, self.is_idle) = (end, false),
                Err(wake_at) => (self.wake_at, self.is_idle) = (wake_at, true),
            }
            engine.note_ends(self.now, context);
            let ended = context.ended[num_ended..].iter();
            self.just_ended.extend(ended.map(|&(_, index)| index));
            if !context.messages.is_empty() {
                break;
            }
        }
    }

    /// Loses everything at `now`; returns the requests that it had. What the step at hand would have given is not given.
    pub(crate) fn lose(&mut self, now: Nanos, outcomes: &mut Outcomes) -> Vec<u32> {
        let mut lost = self.take_inbox();
        if let Some(engine) = self.engine.take() {
            lost.extend(engine.live.values());
        }
        let just_ended = mem::take(&mut self.just_ended);
        if self.now > now {
            let is_answered = |index: &u32| outcomes.progress[*index as usize].ended != NEVER;
            lost.extend(just_ended.into_iter().filter(is_answered));
            for &index in &lost {
                outcomes.take_back(index as usize, self.now);
            }
        }
        lost.sort_unstable();
        (self.now, self.is_idle, self.wake_at) = (now, true, None);
        lost
    }

    /// Takes the requests that are on the way to it.
    fn take_inbox(&mut self) -> Vec<u32> {
        let told = self.inbox.drain(..);
        let add = |(_, command)| match command {
            Command::Add(index) => Some(index),
            _ => None,
        };
        told.filter_map(add).collect()
    }
}
