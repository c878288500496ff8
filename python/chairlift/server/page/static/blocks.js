/** The KV pool as a map: each cell is some blocks, filled from below by what holds them. */
import { $, css, fill, fillOf, label, num, pen, percent } from './theme.js';

/** @type {Blocks | undefined} */
let pool;
const sum = (list) => list.reduce((a, b) => a + b, 0);

/** @param {Blocks} blocks @param {Load} load */
export function setBlocks(blocks, load, block_size) {
  pool = blocks;
  const [held, own, cached, shared, free] = [blocks.held, blocks.own, blocks.cached, blocks.shared, blocks.free].map(sum);
  const all = held + cached + free;
  $('kvLine').textContent = `${percent(held, all)} held · ${percent(cached, all)} cached · ${percent(free, all)} free`;
  const used = (load.num_blocks - load.num_free_blocks) * block_size, waste = used - load.num_kv_tokens;
  $('kvNote').textContent = [
    `${num(all)} blocks of ${block_size} tokens`,
    used > 0 && waste >= 0 ? `${percent(waste, used)} of the held places are empty` : '',
    load.num_prefix_queries ? `${percent(load.num_prefix_hits, load.num_prefix_queries)} of prompt blocks found in the prefix cache` : '',
    load.num_preemptions ? `${num(load.num_preemptions)} preemptions` : '',
  ].filter(Boolean).join(' · ');
  label($('blocks'), `Map of ${num(all)} KV blocks: ${num(held)} held, ${num(cached)} cached, ${num(free)} free.`);
  fill($('blocksTable'), 'KV blocks', ['State', 'Blocks', 'Share'], [
    ['held', held], ['held by your requests', own], ['held by several requests', shared], ['cached', cached], ['free', free],
  ].map(([name, n]) => [name, num(Number(n)), percent(Number(n), all)]));
}

export function drawBlocks() {
  const canvas = $('blocks');
  if (!pool || !canvas.clientWidth) return;
  const n = pool.held.length, across = Math.min(n, Math.max(16, Math.floor(canvas.clientWidth / 11)));
  const w = canvas.clientWidth / across, h = Math.min(24, Math.max(9, w)), { c } = pen(canvas, Math.ceil(n / across) * h);
  const fills = [css('--own'), fillOf(c, css('--other'), '\\'), fillOf(c, css('--cached'), '/')];
  for (let i = 0; i < n; i++) {
    const x = (i % across) * w, parts = [pool.own[i], pool.held[i] - pool.own[i], pool.cached[i]];
    const full = (h - 2) / Math.max(1, sum(parts) + pool.free[i]);
    let y = Math.floor(i / across) * h + h - 1;
    c.fillStyle = css('--grid');
    c.fillRect(x + 0.5, y - h + 2, w - 1.5, h - 2);
    c.fillStyle = css('--page');
    c.fillRect(x + 1.5, y - h + 3, w - 3.5, h - 4);
    parts.forEach((part, k) => {
      c.fillStyle = fills[k];
      c.fillRect(x + 0.5, y - part * full, w - 1.5, part * full);
      y -= part * full;
    });
    if (pool.shared[i]) {
      c.fillStyle = css('--text');
      c.fillRect(x + w / 2 - 2, Math.floor(i / across) * h + h / 2 - 1.5, 3, 3);
    }
  }
}
