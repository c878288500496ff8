/** What all parts share: elements, canvases, colours, numbers, the theme. */

/** @returns {any} */
export const $ = (id) => document.getElementById(id);

/** Make an element with properties and children. @param {...(Node | string)} kids @returns {any} */
export function el(tag, props = {}, ...kids) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...kids);
  return node;
}

/** Fill a table. The first cell of a row is its heading. */
export function fill(table, caption, head, rows) {
  const cell = (v, i) =>
    el(i ? 'td' : 'th', i ? {} : { scope: 'row' }, v instanceof Node ? v : String(v));
  table.replaceChildren(
    el('caption', { className: 'sr' }, caption),
    el('thead', {}, el('tr', {}, ...head.map((h) => el('th', { scope: 'col' }, h)))),
    el('tbody', {}, ...rows.map((r) => el('tr', {}, ...r.map(cell)))),
  );
}

export const label = (node, text) => node.setAttribute('aria-label', text);

export const num = (n) => n.toLocaleString('en', { maximumFractionDigits: Math.abs(n) < 10 ? 1 : 0 });
export const clamp = (v, low, high) => Math.max(low, Math.min(high, v));
/** Write microseconds. */
export const time = (us) =>
  us == null ? '–' : us < 995 ? `${num(us)} µs` : us < 999500 ? `${num(us / 1e3)} ms` : span(us / 1e3);
export const percent = (part, all) => `${all ? num((100 * part) / all) : 0} %`;
export const count = (n, one) => `${num(n)} ${one}${n === 1 ? '' : 's'}`;
/** Write milliseconds. */
export function span(ms) {
  const s = ms / 1e3;
  if (s < 60) return `${num(s)} s`;
  const m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? `${num(h)} h ${m % 60} m` : `${m} m ${Math.floor(s % 60)} s`;
}

/** Colours that colour-blind readers tell apart; from the seventh request on the numbers tell. */
const OKABE = ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00'];
/** Return the colour of a request; 0 is another tenant's. */
export const colour = (no) => (no ? OKABE[(no - 1) % 6] : css('--other'));
export const ink = (no) => (no ? (no % 6 === 1 ? '#fff' : '#111') : css('--text'));
export function badge(no) {
  const node = el('b', { className: 'badge' }, no ? String(no) : '–');
  if (no) Object.assign(node.style, { background: colour(no), color: ink(no) });
  return node;
}

/** @type {Map<string, any>} */
const known = new Map();
/** Return the colour of a CSS variable, as a canvas takes it. */
export function css(name) {
  if (!known.has(name)) {
    const probe = el('i');
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    known.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(name);
}

/** Return a fill: hatched (`/` or `\`), striped (`|`) or plain. */
export function fillOf(c, shade, kind) {
  if (!kind) return shade;
  const key = shade + kind;
  if (!known.has(key)) {
    const tile = el('canvas', { width: 6, height: 6 }), p = tile.getContext('2d');
    p.fillStyle = kind === '|' ? shade : css('--page');
    p.fillRect(0, 0, 6, 6);
    p.strokeStyle = kind === '|' ? css('--page') : shade;
    p.lineWidth = kind === '|' ? 1.6 : 2.2;
    p.beginPath();
    for (const d of [-6, 0, 6]) {
      if (kind === '|') p.moveTo(3, 0), p.lineTo(3, 6);
      else if (kind === '/') p.moveTo(d - 1, 7), p.lineTo(d + 7, -1);
      else p.moveTo(d - 1, -1), p.lineTo(d + 7, 7);
    }
    p.stroke();
    known.set(key, c.createPattern(tile, 'repeat'));
  }
  return known.get(key);
}

export const FONT = '10px system-ui, sans-serif';
/** Fit a canvas to its box, `height` CSS pixels high; return its cleared context and its width. */
export function pen(canvas, height) {
  const w = canvas.clientWidth, r = Math.min(2, devicePixelRatio || 1);
  const size = [Math.round(w * r), Math.round(height * r)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) {
    [canvas.width, canvas.height] = size;
    canvas.style.height = `${height}px`;
  }
  const c = canvas.getContext('2d');
  c.setTransform(r, 0, 0, r, 0, 0);
  c.clearRect(0, 0, w, height);
  c.font = FONT;
  c.textBaseline = 'middle';
  return { c, w };
}

let spoken = 0;
/** Tell a screen reader, at most once in 10 s unless it `must` hear. */
export function say(text, must = false) {
  if (!must && Date.now() - spoken < 1e4) return;
  spoken = Date.now();
  $('status').textContent = text;
}

/** Read, write or, if `value` is empty, remove what the browser keeps. @param {string | null} [value] */
export function keep(key, value = null, where = 'localStorage') {
  try {
    if (value) window[where].setItem(key, value);
    else if (value === '') window[where].removeItem(key);
    return window[where].getItem(key) ?? '';
  } catch {
    return value ?? '';
  }
}

const THEMES = ['system', 'light', 'dark'];
/** Let the button change the theme; `changed` draws again. */
export function themes(changed) {
  const media = ['(prefers-color-scheme: dark)', '(forced-colors: active)'].map((q) => matchMedia(q));
  const renew = () => (known.clear(), changed());
  let now = keep('chairlift.theme') || 'system';
  const show = (name) => {
    document.documentElement.style.colorScheme = name === 'system' ? 'light dark' : name;
    $('theme').textContent = `Theme: ${name}`;
    renew();
  };
  media.forEach((m) => m.addEventListener('change', renew));
  $('theme').onclick = () => {
    now = THEMES[(THEMES.indexOf(now) + 1) % 3];
    show(keep('chairlift.theme', now));
  };
  show(now);
}
