//! Host memory, seen from outside: which requests resume with what they had computed, and which must.

use chairlift_core::cost_model::Work;

use crate::{
    client::State,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// A request loses its blocks: what of it may be in host memory from now on, and whether it has to be if it `has_room`.
    pub(crate) fn keep(&mut self, index: usize, has_room: bool) {
        let config = &self.scenario.config;
        let client = &self.clients[index];
        let num_blocks = self.num_held(client);
        let time = 2 * num_blocks as u64 * config.swap_block_time;
        let again = self
            .scheduler
            .costs()
            .added(Work::of(0, client.num_computed));
        // Between the calls for one plan the costs may change.
        let is_known = config.steps_in_flight == 1;
        let pays = !is_known || time as f64 <= again;
        // With a window there may be nothing to keep.
        let may_keep = pays && (1..=config.num_host_blocks).contains(&num_blocks);
        let client = &mut self.clients[index];
        client.num_kept = if may_keep { client.num_computed } else { 0 };
        client.is_kept = may_keep && is_known && has_room;
    }

    /// A step has failed: nothing in host memory is trusted.
    pub(crate) fn forget_swapped(&mut self) {
        for &index in &self.live {
            let client = &mut self.clients[index];
            self.tally
                .add(Sight::SwapsForgotten, u64::from(client.is_kept));
            (client.num_kept, client.is_kept) = (0, false);
        }
    }

    /// A request goes on behind what the cache knows, or where it was when it lost its blocks.
    pub(crate) fn check_start(&mut self, index: usize, start: usize) -> Checked {
        let config = &self.scenario.config;
        let client = &mut self.clients[index];
        let label = client.label;
        let (kept, is_kept) = (client.num_kept, client.is_kept);
        ensure!(
            !is_kept || start >= kept,
            "#{label} begins at {start} and has {kept} tokens in host memory"
        );
        let is_back = start > 0 && start == kept;
        ensure!(
            is_back || start.is_multiple_of(config.block_size),
            "#{label} begins at {start}, amid a block"
        );
        ensure!(
            is_back || start == 0 || client.reads_cache,
            "#{label} does not read the cache and begins at {start}"
        );
        (client.num_kept, client.is_kept) = (0, false);
        client.swaps_in = is_back;
        self.tally.add(Sight::SwappedBack, u64::from(is_back));
        self.tally.add(
            Sight::SwappedBackMidBlock,
            u64::from(!start.is_multiple_of(config.block_size)),
        );
        Ok(())
    }

    /// A request that was swapped in and was in no step yet begins again if one fails: its blocks may not be there.
    pub(crate) fn roll_back_returning(&mut self) {
        let returning = self.running.iter().copied();
        let returning: Vec<_> = returning
            .filter(|&index| {
                let client = &self.clients[index];
                client.swaps_in && client.is_live() && client.due.is_none()
            })
            .collect();
        for index in returning {
            self.roll_back(index);
        }
    }

    /// It keeps its row and computes everything again.
    pub(crate) fn roll_back(&mut self, index: usize) {
        self.clients[index].roll_back();
        self.tally.saw(Sight::RolledBack);
    }

    /// Host blocks that waiting requests hold at most.
    pub(crate) fn max_host_blocks(&self) -> usize {
        let waiting = self.live.iter().map(|&index| &self.clients[index]);
        let kept = waiting.filter(|client| client.state == State::Waiting && client.num_kept > 0);
        kept.map(|client| self.num_held_at(client.num_kept)).sum()
    }

    /// Counts of host memory, after every event.
    pub(crate) fn check_host(&self) -> Checked {
        let (load, config) = (self.scheduler.load(), &self.scenario.config);
        let num_used = load.num_host_blocks.checked_sub(load.num_free_host_blocks);
        let (num_used, max_used) = (num_used.unwrap_or(usize::MAX), self.max_host_blocks());
        ensure!(
            load.num_host_blocks == config.num_host_blocks
                && (num_used <= max_used || config.steps_in_flight > 1)
                && num_used <= config.num_host_blocks,
            "{num_used} host blocks are in use, waiting requests need {max_used}"
        );
        ensure!(
            !self.live.is_empty() || num_used == 0,
            "no request is live, and {num_used} host blocks are not free"
        );
        Ok(())
    }
}
