/** Lines of the last minute, and the parts of a step. */
import { $, css, el, pen, time } from './theme.js';

/** Draw values, one a second. */
export function sparkline(canvas, values) {
  const { c, w } = pen(canvas, 22), top = Math.max(...values, 1), step = w / 59;
  c.strokeStyle = css('--accent');
  c.lineWidth = 1.5;
  c.beginPath();
  values.forEach((v, i) => c.lineTo(w - (values.length - 1 - i) * step, 20.5 - (18 * v) / top));
  c.stroke();
}

const PARTS = ['schedule', 'inputs', 'forward', 'sample', 'update'];
const bars = PARTS.map((_, i) => el('i', { className: `p${i}` }));
const texts = PARTS.map(() => el('dd'));

/** @param {Column[]} steps The last ones. */
export function showParts(steps, budget_ms) {
  if (!steps.length) return;
  if (!$('stepBar').firstChild) {
    $('stepBar').append(...bars);
    PARTS.forEach((name, i) => $('stepParts').append(el('div', {}, el('dt', {}, el('i', { className: `p${i}` }), name), texts[i])));
  }
  const mean = (of) => steps.reduce((sum, s) => sum + of(s), 0) / steps.length;
  PARTS.forEach((_, i) => {
    const us = mean((s) => s.parts[i] ?? 0);
    bars[i].style.flexGrow = String(us);
    texts[i].textContent = time(us);
  });
  $('stepNote').textContent = `takes ${time(mean((s) => s.us))}, mean of the last ${steps.length}${budget_ms ? `; budget ${budget_ms} ms` : ''}`;
}
