/** The figure: three sliders, one typical static batch with its idle space, and the gain over the variation. */

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 640, HEIGHT = 280, LEFT = 44, RIGHT = 20, TOP = 16, BOTTOM = 40;
const MAX_CV = 1.5;

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

/**
 * Return an element of SVG.
 * @param {string} name @param {Record<string, string | number>} fields @param {string} text
 */
function drawn(name, fields, text = '') {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(fields)) node.setAttribute(key, String(value));
  node.textContent = text;
  return node;
}

function chosen() {
  return { cv: Number(byId('cv').value), rows: 2 ** Number(byId('rows').value), ratio: Number(byId('ratio').value) };
}

/**
 * Return the lengths of a typical batch over its longest.
 * @param {number} cv @param {number} rows
 */
function typical(cv, rows) {
  const { length, below } = lengthsOf(cv);
  const found = Array.from({ length: rows }, (_, i) => length[below.findIndex((share) => share >= (i + 0.5) / rows)]);
  const longest = found[rows - 1];
  // In an order that looks like that of arrivals, and is always the same.
  const place = (/** @type {number} */ i) => (i * 0.618034) % 1;
  return found.map((value, i) => ({ share: value / longest, at: place(i) })).sort((a, b) => a.at - b.at);
}

/** @param {number} cv @param {number} rows */
function drawBatch(cv, rows) {
  const picture = byId('batch'), room = WIDTH - LEFT - RIGHT, high = 160 / rows;
  const parts = typical(cv, rows).flatMap(({ share }, i) => {
    const box = { y: 4 + i * high, height: Math.max(1.5, high - (rows > 16 ? 0.6 : 2)) };
    return [
      drawn('rect', { x: LEFT, width: room, class: 'idle', ...box }),
      drawn('rect', { x: LEFT, width: Math.max(2, room * share), class: 'busy', ...box }),
    ];
  });
  parts.push(drawn('text', { x: LEFT, y: 184 }, 'steps of the batch: it ends with its longest answer'));
  picture.replaceChildren(...parts);
}

/** @param {number} cv @param {number} rows @param {number} ratio */
function drawCurve(cv, rows, ratio) {
  const picture = byId('curve');
  const points = Array.from({ length: 30 }, (_, i) => (MAX_CV * (i + 1)) / 30).map((x) => ({ x, ...gainOf(x, rows, ratio) }));
  const most = Math.max(2, Math.ceil(points[points.length - 1].slots));
  const across = (/** @type {number} */ x) => LEFT + ((WIDTH - LEFT - RIGHT) * x) / MAX_CV;
  const up = (/** @type {number} */ y) => TOP + ((HEIGHT - TOP - BOTTOM) * (most - y)) / most;
  const line = (/** @type {(p: any) => number} */ of) => points.map((p) => `${across(p.x).toFixed(1)},${up(of(p)).toFixed(1)}`).join(' ');
  const parts = [];
  const every = most > 6 ? 2 : 1;
  for (let y = 0; y <= most; y += every) {
    parts.push(drawn('line', { x1: LEFT, x2: WIDTH - RIGHT, y1: up(y), y2: up(y), class: y === 1 ? 'one' : 'grid' }));
    parts.push(drawn('text', { x: LEFT - 8, y: up(y) + 4, 'text-anchor': 'end' }, `${y}x`));
  }
  for (let x = 0; x <= MAX_CV; x += 0.25) {
    parts.push(drawn('text', { x: across(x), y: HEIGHT - 22, 'text-anchor': 'middle' }, x.toString()));
  }
  parts.push(drawn('text', { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, 'text-anchor': 'middle' }, 'variation of the lengths'));
  parts.push(drawn('polyline', { points: line((p) => p.slots), class: 'slots' }));
  parts.push(drawn('polyline', { points: line((p) => p.gain), class: 'gain' }));
  const { gain } = gainOf(cv, rows, ratio);
  parts.push(drawn('circle', { cx: across(cv), cy: up(gain), r: 5, class: 'dot' }));
  picture.replaceChildren(...parts);
}

/** @param {number} value */
const short = (value) => value.toFixed(value < 10 ? 1 : 0);

function draw() {
  const { cv, rows, ratio } = chosen();
  const { fixed, moving, slots, longer, gain } = gainOf(cv, rows, ratio);
  byId('cvOut').textContent = cv.toFixed(2);
  byId('rowsOut').textContent = String(rows);
  byId('rows').setAttribute('aria-valuetext', `${rows} rows`);
  byId('ratioOut').textContent = `${ratio.toFixed(1)} times`;
  byId('answer').textContent = `Continuous batching gains ${gain.toFixed(2)}x.`;
  byId('why').textContent =
    `Static batching keeps ${short(fixed * rows)} of ${rows} rows busy, continuous ${short(moving * rows)}: slots allow ${slots.toFixed(2)}x. ` +
    `A step of ${short(moving * rows)} rows takes ${longer.toFixed(2)} times as long as one of ${short(fixed * rows)}.`;
  byId('batch').setAttribute('aria-label', `A static batch of ${rows} rows: ${Math.round(fixed * 100)} % of its slots are used, the rest is idle.`);
  byId('curve').setAttribute('aria-label', `Gain over the variation of the lengths, ${gain.toFixed(2)}x at ${cv.toFixed(2)}; dashed: what slots allow.`);
  drawBatch(cv, rows);
  drawCurve(cv, rows, ratio);
}

for (const id of ['cv', 'rows', 'ratio']) byId(id).addEventListener('input', draw);
for (const button of document.querySelectorAll('button')) {
  button.addEventListener('click', () => {
    const { slider = '', value } = button.dataset;
    byId(slider).value = value;
    draw();
  });
}
draw();
