/** The queue: which requests wait, and for what. */
import { $, badge, el, fill, num, span } from './theme.js';

/** @type {Record<string, string>} */
const CAUSES = {
  ROW: 'a row', BLOCKS: 'KV blocks', BUDGET: 'step tokens', POLICY: 'batch end', SHARE: 'fair share', STEP: 'next step', SUSPENDED: 'client',
};

/** @param {Queue} queue */
export const causes = (queue) =>
  Object.entries(queue.causes).filter(([, n]) => n).map(([cause, n]) => `${num(n)} for ${CAUSES[cause] ?? cause}`).join(', ');

/** @param {Queue} queue */
export function showQueue(queue, numberOf) {
  const n = queue.num_own + queue.num_other, more = queue.num_own - queue.own.length;
  $('queueLine').textContent = n ? `${num(n)} waiting: ${causes(queue)}` : 'empty';
  fill($('queue'), 'Waiting requests, first to last', queue.own.length ? ['Request', 'Waits for', 'Before', 'Prompt', 'Wait', 'Age'] : [],
    queue.own.map(([handle, id, cause, before, computed, tokens, wait_ms, age_ms]) => {
      const no = numberOf(handle);
      return [
        el('span', { title: id || handle }, ...(no ? [badge(no), ' '] : []), (id || handle).slice(0, 16)),
        CAUSES[cause ?? ''] ?? '–', num(before), computed ? `${num(computed)} of ${num(tokens)}` : num(tokens),
        wait_ms == null ? '–' : `~${span(wait_ms)}`, span(age_ms),
      ];
    }));
  $('queueNote').textContent = [more ? `${num(more)} more of yours` : '', queue.num_other ? `${num(queue.num_other)} of other tenants` : ''].filter(Boolean).join(', ');
}
