//! Whose blocks go: a tenant within its fair share of the rows in use loses none while one beyond its share could give some.
//!
//! When in the step a request lost its row is not known. So a tenant counts as within its share if it was before any row was
//! lost, of the rows in use after; and as beyond it if it is after, of the rows in use before.

use chairlift_core::plan::PlanView;

use crate::{
    batch::Before,
    world::{Checked, World, ensure},
    yielding::has_progress,
};

impl World {
    /// No request of a tenant within its share is preempted that was admitted before one of a tenant beyond it: whichever
    /// request lacked a block, that one could have been preempted, too.
    pub(crate) fn check_victims(
        &self,
        before: &Before,
        order: &[usize],
        preempted: &[usize],
    ) -> Checked {
        if self.scenario.config.steps_in_flight > 1 || !before.has_preempted {
            return Ok(());
        }
        let may_go = |index: &&usize| {
            let client = &self.clients[**index];
            before.running.contains(*index) && !client.waits_for_parent
        };
        let could_go = |index: &&usize| self.is_beyond(before, **index);
        let stays = order.iter().filter(may_go).rfind(could_go);
        let place = |index: &usize| order.iter().position(|other| other == index);
        let mut victims = preempted.iter();
        let spared = victims.find(|&index| {
            let is_idle = before.has_idle(*index) || self.clients[*index].waits_for_parent;
            !is_idle && self.is_within(before, *index) && place(index) < stays.and_then(place)
        });
        ensure!(
            spared.is_none(),
            "#{} of a tenant within its share is preempted, and #{} of one beyond it keeps its row",
            spared.map_or(0, |&index| self.clients[index].label),
            stays.map_or(0, |&index| self.clients[index].label)
        );
        Ok(())
    }

    /// No request of a tenant within its share is preempted where only requests of tenants beyond theirs got blocks, the
    /// oldest apart. `spared` are those of the preempted that lacked none themselves.
    pub(crate) fn check_preempting(
        &self,
        before: &Before,
        view: &PlanView<'_>,
        preempted: &[usize],
        spared: &[usize],
    ) -> Checked {
        if self.scenario.config.steps_in_flight > 1 || !before.has_preempted {
            return Ok(());
        }
        let gains = view.block_updates.iter().filter(|update| update[3] > 0);
        let gains: Option<Vec<_>> = gains.map(|update| self.rows[update[1] as usize]).collect();
        // A row that is assigned now gains none by preempting.
        let gains = gains.unwrap_or_default();
        let ran = |index: &usize| before.running.contains(index);
        let is_beyond =
            |index: &usize| before.running.first() != Some(index) && self.is_beyond(before, *index);
        let gains: Vec<_> = gains.into_iter().filter(ran).collect();
        let mut victims = preempted.iter();
        let is_known =
            victims.all(|index| spared.contains(index) || self.is_beyond(before, *index));
        let taken = spared
            .iter()
            .find(|&&index| !before.has_idle(index) && self.is_within(before, index));
        ensure!(
            !is_known || gains.is_empty() || taken.is_none() || !gains.iter().all(is_beyond),
            "#{} of a tenant within its share is preempted for one of a tenant beyond it",
            taken.map_or(0, |&index| self.clients[index].label)
        );
        Ok(())
    }

    /// It runs, and its next token needs no block of its own for certain.
    pub(crate) fn lacks_no_block(&self, index: usize) -> bool {
        let client = &self.clients[index];
        let block_size = self.scenario.config.block_size;
        client.num_sequences == 1
            && client.num_pending() == 1
            && !client.is_rolled_back
            && !client.num_computed.is_multiple_of(block_size)
    }

    /// And it has gone on since it lost its row, if it did.
    fn is_beyond(&self, before: &Before, index: usize) -> bool {
        let num_rows = before.rows_held.num_in_use();
        let client = &self.clients[index];
        has_progress(client) && before.row_usage.is_beyond(client.tenant, num_rows)
    }

    fn is_within(&self, before: &Before, index: usize) -> bool {
        let num_rows = before.row_usage.num_in_use();
        let tenant = self.clients[index].tenant;
        !before.rows_held.is_beyond(tenant, num_rows)
    }
}
