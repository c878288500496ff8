/** The page: takes the feed's events, keeps the state, draws at most ten times a second. */
import { drawBlocks, setBlocks } from './blocks.js';
import { showParts, sparkline } from './chart.js';
import { Feed, hasToken, setToken } from './feed.js';
import { Play } from './play.js';
import { causes, showQueue } from './queue.js';
import { Rows, drawBands } from './rows.js';
import { $, el, fill, keep, num, say, span, themes, time } from './theme.js';

const WORDS = { connecting: 'connecting', open: 'connected', lost: 'disconnected', loading: 'not ready', refused: 'refused', token: 'token needed' };
const phone = matchMedia('(max-width: 639px)'), calm = matchMedia('(prefers-reduced-motion: reduce)');
const body = document.body, hint = $('cell').textContent, rows = new Rows(), play = new Play(placeOf), feed = new Feed(take, follow);
/** @type {Hello | null} */
let hello = null;
/** @type {Load | null} */
let load = null;
/** @type {Queue | null} */
let queue = null;
/** @type {Frame['bands']} */
let bands;
/** Frames that came while the page is paused. @type {Frame[]} */
let held = [];
let isLong = false, state = 'connecting', reason = '', paused = false, dirty = true, sampled = 0, heard = Date.now(), worked = Date.now(), ticked = Date.now(), ticks = 0, lensTimer = 0;

/** @type {Record<string, any>} */
const tiles = {};
for (const [id, unit] of Object.entries({ rate: 'tokens/s', rows: 'rows', waiting: 'waiting', ttft: 'to the first token', itl: 'between tokens' })) {
  const tile = { value: el('b', {}, '–'), more: el('small', { className: 'dim' }), past: [], line: 'ti'.includes(id[0]) ? null : el('canvas') };
  tile.line?.setAttribute('aria-hidden', 'true');
  $('tiles').append(el('li', {}, tile.value, ' ', el('span', {}, unit), tile.more, ...(tile.line ? [tile.line] : [])));
  tiles[id] = tile;
}

function placeOf(handle) {
  const no = rows.handles.get(handle) ?? 0, known = rows.requests.get(no);
  return [no, known ? known.row : null];
}

/** Choose the rows in view. */
function setLens(first) {
  const most = phone.matches ? 16 : rows.total > 256 ? 64 : rows.total, n = Math.min(most, rows.total);
  const next = { first: Math.max(0, Math.min(rows.total - n, Math.floor(first) || 0)), num: n };
  const moved = next.first !== rows.shown.first || n !== rows.shown.num;
  rows.shown = next;
  $('lens').hidden = n === rows.total;
  $('first').max = rows.total - n;
  if (document.activeElement !== $('first')) $('first').value = next.first;
  $('lensNote').textContent = `to ${next.first + n - 1} of ${num(rows.total)}`;
  if (moved && rows.total > 256) {
    // Only these rows are in the feed's spans.
    Object.assign(feed.query, { first_row: next.first, num_rows: n });
    clearTimeout(lensTimer);
    lensTimer = window.setTimeout(() => (rows.clear(), feed.open()), 200);
  }
  dirty = true;
}

function take(name, data) {
  heard = Date.now();
  if (name === 'hello') greet(data);
  else if (name === 'frame') {
    const n = data.start_us.length;
    if (n) worked = heard;
    sampled += data.num_sampled.reduce((a, b) => a + b, 0);
    // A pause is half a minute at most: what comes later is drawn as steps that are not shown.
    if (paused) held.push(data), held.splice(300);
    else rows.add(data), (bands = data.bands ?? bands);
    if (n) play.draw();
    dirty = true;
  } else if (name === 'load') {
    load = data;
    if (data.state && hello) hello.server.state = data.state;
  } else if (name === 'queue') queue = data;
  else if (name === 'blocks' && load && hello && !paused) setBlocks(data, load, hello.server.block_size), (dirty = true);
  else if (name === 'bye') reason = data.reason;
}

/** @param {Hello} data */
function greet(data) {
  if (hello && hello.server.start_ms !== data.server.start_ms) {
    rows.clear();
    load = queue = null;
    for (const id in tiles) tiles[id].past = [];
    reason = 'restarted';
  }
  const { server, model } = (hello = play.hello = data);
  rows.numbers.clear();
  rows.total = server.max_num_seqs;
  setLens(rows.shown.first);
  $('model').textContent = [model.name, model.architecture, model.quantization === 'none' ? model.dtype : model.quantization, server.device, server.kernels, `${server.batching} batching`].filter(Boolean).join(' · ');
  document.title = `Chairlift: ${model.name}`;
  const chat = model.has_chat_template, text = JSON.stringify({ model: model.name, ...(chat ? { messages: [{ role: 'user', content: 'Hello!' }] } : { prompt: 'Hello' }) });
  $('curl').textContent = `curl ${location.origin}/v1/${chat ? 'chat/' : ''}completions -H 'Content-Type: application/json'${hasToken() ? ' -H "Authorization: Bearer $TOKEN"' : ''} -d '${text.replaceAll("'", "'\\''")}'`;
}

function follow(next, text) {
  if (next === 'token' && hasToken()) text = 'The server refused this token.';
  if (next !== state && !(next === 'open' && state === 'connecting')) {
    say(reason === 'restarted' ? 'the server was restarted' : WORDS[next], true);
  }
  reason = next === 'open' ? '' : text || reason;
  const asked = next === 'token';
  if (asked) setToken('', false);
  state = next;
  $('login').hidden = !asked;
  $('main').hidden = asked || !hello;
  if (asked) $('token').focus();
  showState();
  dirty = true;
}

function showState() {
  const server = hello?.server, live = state === 'open', word = live ? (server?.state ?? '').toLowerCase() : state, age = Date.now() - heard;
  const quiet = live && load && !load.num_running && !load.num_waiting && Date.now() - worked > 2000;
  const draining = word.includes('drain');
  body.dataset.state = !live ? (state === 'lost' && !hello ? 'connecting' : state) : draining ? 'draining' : quiet ? 'idle' : 'open';
  $('state').textContent = live && server
    ? draining ? 'draining' : `${word || 'serving'} ${span(Math.max(0, Date.now() - server.start_ms))}${quiet && rows.head ? ` · idle for ${span(Date.now() - worked)}` : ''}`
    : WORDS[state];
  const why = { draining: 'the server ends', slow_reader: 'this browser read too slowly' }[reason] ?? reason;
  $('notice').textContent = live ? (draining ? 'The server finishes its requests and takes no new ones.' : '')
    : state === 'lost' ? `${hello ? `Disconnected: the figures are ${span(age)} old.` : 'The server does not answer.'}${why ? ` (${why})` : ''} This page connects again by itself.`
    : state === 'loading' ? `The server is not ready: ${why}` : state === 'refused' ? `The server refused: ${why}` : state === 'token' ? why : '';
  $('notice').hidden = !$('notice').textContent;
  play.allow(!live ? 'The server cannot be reached now.' : draining ? 'The server takes no new requests.' : hello?.caller.may_run ? '' : 'This caller may not send requests.');
  $('empty').hidden = !live || !load || !!(rows.head || held.length || play.running || load.num_running || load.num_waiting);
  if (!$('empty').hidden && document.activeElement === body) $('demo1').focus();
}

function tile(id, value, more, point = NaN) {
  const { value: v, more: m, line, past } = tiles[id];
  v.textContent = value;
  m.textContent = more;
  if (line) past.push(point);
  if (past.length > 60) past.shift();
  if (line?.clientWidth) sparkline(line, past);
}

function showFigures() {
  const seconds = (Date.now() - ticked) / 1e3, rate = sampled / seconds;
  ticked = Date.now();
  sampled = 0;
  if (!load || !hello || state !== 'open') return;
  tile('rate', num(rate), '', rate);
  tile('rows', `${num(load.num_running)} of ${num(hello.server.max_num_seqs)}`, load.num_running_suspended ? `${num(load.num_running_suspended)} suspended` : '', load.num_running);
  tile('waiting', num(load.num_waiting), queue && load.num_waiting ? causes(queue) : '', load.num_waiting);
  const { tenant } = hello.caller, own = load.tenants.find((t) => t.tenant === tenant) ?? [...load.tenants].sort((a, b) => b.num_started - a.num_started)[0];
  const ms = (v) => (v == null ? '–' : time(v * 1e3));
  tile('ttft', ms(own?.ttft_p50_ms), `TTFT p50 · p99 ${ms(own?.ttft_p99_ms)}${load.tenants.length > 1 ? ` of ${own.tenant || 'all'}` : ''}`);
  tile('itl', time(load.itl_p50_us), `ITL p50 · p99 ${time(load.itl_p99_us)}`);
  if (queue) showQueue(queue, (handle) => rows.handles.get(handle) ?? 0);
  $('tenantsPanel').hidden = load.tenants.length < 2;
  fill($('tenants'), 'Tenants, last minute', ['Tenant', 'Started', 'TTFT p50', 'p99', 'Ended'], load.tenants.map((t) => [
    t.tenant || '–', num(t.num_started), ms(t.ttft_p50_ms), ms(t.ttft_p99_ms), t.reasons.map(([why, , n]) => `${why} ${num(n)}`).join(', ') || '–',
  ]));
  if (load.num_waiting > 100 && !isLong) say('more than 100 requests wait');
  isLong = load.num_waiting > 100;
}

function tick() {
  showState();
  if (paused) return;
  showFigures();
  showParts(rows.steps.slice(-50), hello?.server.step_budget_ms ?? 0);
  $('rowsNote').textContent = rows.note ?? '';
  if (body.classList.contains('tables') || ticks++ % 5 === 0) rows.tell();
  if (rows.cursor) showCell();
  if (calm.matches) draw();
}

function draw() {
  if (!dirty || document.hidden || $('main').hidden) return;
  dirty = false;
  rows.draw();
  drawBlocks();
  $('bandsBox').hidden = !bands || rows.total <= 256;
  if (bands && rows.total > 256) drawBands(bands, rows.shown, rows.total);
}

function showCell(aloud = false) {
  $('cell').textContent = rows.describe() || hint;
  if (aloud) say($('cell').textContent, true);
  dirty = true;
  if (paused || aloud || calm.matches) draw();
}

const press = (id, on) => $(id).setAttribute('aria-pressed', String(on));
const toggles = {
  pause() {
    paused = !paused;
    press('pause', paused);
    $('pause').textContent = paused ? 'Go on' : 'Pause';
    held.splice(0).forEach((frame) => (rows.add(frame), (bands = frame.bands ?? bands)));
    body.classList.toggle('paused', paused);
    dirty = true;
  },
  tables() {
    press('tables', body.classList.toggle('tables'));
    rows.tell();
    dirty = true;
  },
  axis() {
    press('axis', (rows.byTime = !rows.byTime));
    dirty = true;
    draw();
  },
  help() {
    $('helpBox').showModal();
  },
};
Object.entries(toggles).forEach(([id, act]) => ($(id).onclick = act));

$('keys').checked = keep('chairlift.keys') !== 'off';
$('keys').onchange = () => keep('chairlift.keys', $('keys').checked ? 'on' : 'off');
document.addEventListener('keydown', (event) => {
  /** @type {any} */
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest('input, textarea, dialog') || !$('keys').checked) return;
  const act = { p: toggles.pause, t: toggles.tables, '?': toggles.help }[event.key.toLowerCase()];
  if (act) act(), event.preventDefault();
});

const canvas = $('rows');
canvas.addEventListener('keydown', (event) => {
  const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (event.key in by) rows.move(...by[event.key]), showCell(true);
  else if (event.key === 'PageUp') turn(-1);
  else if (event.key === 'PageDown') turn(1);
  else if (event.key === 'Enter') choose();
  else if (event.key === 'Escape') (rows.only = rows.cursor = null), showCell();
  else return;
  event.preventDefault();
});
function choose() {
  const no = rows.current?.no;
  rows.only = no && no !== rows.only ? no : null;
  showCell(true);
}
canvas.onpointermove = (event) => {
  rows.cursor = rows.cellAt(event.offsetX, event.offsetY);
  showCell();
};
canvas.onpointerleave = () => document.activeElement !== canvas && ((rows.cursor = null), showCell());
canvas.onclick = choose;
const turn = (by) => setLens(rows.shown.first + by * rows.shown.num);
$('up').onclick = () => turn(-1);
$('down').onclick = () => turn(1);
$('first').onchange = () => setLens($('first').valueAsNumber);
$('bands').onclick = (event) => setLens((event.offsetX / $('bands').clientWidth) * rows.total - rows.shown.num / 2);
$('login').onsubmit = (event) => {
  event.preventDefault();
  setToken($('token').value.trim(), $('keep').checked);
  $('token').value = '';
  reason = '';
  feed.open();
};
const narrow = () => {
  for (const id of ['queuePanel', 'kvPanel']) $(id).open = !phone.matches;
  setLens(rows.shown.first);
};
phone.onchange = narrow;
addEventListener('resize', () => (dirty = true));
narrow();
themes(() => ((dirty = true), draw()));
feed.query.fps = calm.matches ? 1 : 10;
setInterval(() => paused || calm.matches || draw(), 100);
setInterval(tick, 1000);
showState();
feed.open();
