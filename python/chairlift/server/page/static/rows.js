/** The rows over the last steps: spans, never cells. */
import { $, FONT, clamp, colour, count, css, fill, fillOf, ink, label, num, pen, time } from './theme.js';

const MAX_COLUMNS = 240, GAP = 4, LEFT = 30, STRIP = 30, TOP = STRIP + 6, STALL_US = 1e4;
const WORK = ['prompt', 'output', 'last token', 'drafts'], KIND = ['/', '', '', '|'];

export class Rows {
  total = 0;
  shown = { first: 0, num: 0 };
  byTime = false;
  note = '';
  /** Shown alone. @type {number | null} */
  only = null;
  /** @type {{ row: number, at: number } | null} */
  cursor = null;
  /** Oldest first. @type {Column[]} */
  columns = [];
  /** The next column's place. */
  head = 0;
  /** The step that follows. */
  next = -1;
  /** @type {Span[]} */
  spans = [];
  /** By row, the last. @type {Map<number, Span>} */
  last = new Map();
  /** @type {{ row: number, at: number }[]} */
  preempted = [];
  /** @type {Map<number, Known>} */
  requests = new Map();
  /** @type {Map<string, number>} */
  handles = new Map();
  /** The page's number by the feed's. @type {Map<number, number>} */
  numbers = new Map();
  /** Columns in view, place of the first, left edges. */
  view = { list: this.columns, from: 0, x: [0] };

  clear() {
    this.columns = [];
    this.spans = [];
    this.preempted = [];
    this.head = 0;
    this.next = -1;
    for (const map of [this.last, this.requests, this.handles, this.numbers]) map.clear();
  }

  /** @param {Frame} f */
  add(f) {
    for (const [no, handle, id] of f.new) this.name(no, handle, id);
    const put = (column) => (this.columns.push(column), this.head++), numberOf = (no) => this.numbers.get(no) ?? no;
    const missing = this.next < 0 ? 0 : f.first_step - this.next;
    for (let i = 0; i < GAP && missing > 0; i++) put({ gap: i ? -1 : missing, step: 0, us: 0, parts: [], tokens: 0 });
    const base = this.head - f.first_step, oldest = base + f.first_step + f.start_us.length - MAX_COLUMNS;
    f.start_us.forEach((_, i) => put({ gap: 0, step: f.first_step + i, us: f.duration_us[i], parts: f.parts_us[i], tokens: f.num_tokens[i] }));
    this.next = this.head - base;
    for (const [row, first, n, request, work, tokens, accepted] of f.spans) {
      const at = base + first, no = numberOf(request), last = this.last.get(row), known = this.requests.get(no);
      if (known) known.row = row;
      if (last && last.no === no && last.work === work && work !== 2 && last.at + last.n === at) {
        last.n += n;
        last.tokens += tokens;
        last.accepted += accepted;
      } else {
        const span = { row, at, n, no, work, tokens, accepted };
        this.spans.push(span);
        this.last.set(row, span);
      }
    }
    for (const [row, step] of f.preempted) this.preempted.push({ row, at: base + step });
    for (const [no, reason, output] of f.ended) Object.assign(this.requests.get(numberOf(no)) ?? {}, { reason, output });
    this.columns = this.columns.slice(-MAX_COLUMNS);
    this.spans = this.spans.filter((s) => s.at + s.n > oldest);
    this.preempted = this.preempted.filter((p) => p.at >= oldest);
  }

  /** Keep numbers over feeds. */
  name(no, handle, id) {
    const known = this.handles.get(handle), own = known ?? (this.requests.has(no) ? Math.max(...this.requests.keys()) + 1 : no);
    if (!known) {
      this.handles.set(handle, own);
      this.requests.set(own, { handle, id, no, row: null, reason: '', output: 0 });
      if (this.requests.size > 2000) {
        const [oldest, gone] = [...this.requests][0];
        this.requests.delete(oldest);
        this.handles.delete(gone.handle);
        if (this.numbers.get(gone.no) === oldest) this.numbers.delete(gone.no);
      }
    }
    this.numbers.set(no, own);
    Object.assign(this.requests.get(own) ?? {}, { no });
  }

  get steps() {
    return this.columns.filter((c) => !c.gap);
  }

  layout(w) {
    const most = clamp(Math.floor((w - LEFT) / 4), 60, MAX_COLUMNS), list = this.columns.slice(-most), x = [];
    const mean = list.reduce((sum, c) => sum + c.us, 0) / (list.length || 1), widths = list.map((c) => (this.byTime ? c.us || mean : 1));
    const all = this.byTime ? widths.reduce((a, b) => a + b, 0) : most;
    let sum = this.byTime ? 0 : most - list.length;
    for (const width of widths) x.push(LEFT + ((w - LEFT) * sum) / all), (sum += width);
    x.push(w);
    this.view = { list, from: this.head - list.length, x };
  }

  get height() {
    return clamp(Math.floor(512 / (this.shown.num || 1)), 3, 22);
  }

  edge = (at) => this.view.x[clamp(at - this.view.from, 0, this.view.list.length)];
  top = (row) => TOP + (row - this.shown.first) * this.height;
  isShown = (s) => s.row >= this.shown.first && s.row < this.shown.first + this.shown.num && s.at + (s.n ?? 1) > this.view.from;
  alpha = (no) => (this.only === null || no === this.only ? 1 : 0.2);

  draw() {
    const canvas = $('rows'), { first, num: rows } = this.shown, h = this.height, bottom = TOP + rows * h;
    if (!canvas.clientWidth) return;
    const { c, w } = pen(canvas, bottom + 2), { edge, top } = this;
    this.layout(w);
    const { list, from } = this.view;
    c.fillStyle = css('--grid');
    for (let row = 0; row <= rows; row++) c.fillRect(LEFT, TOP + row * h, w - LEFT, 1);
    list.forEach((p, i) => p.gap || p.step % 20 || c.fillRect(edge(from + i), TOP, 1, rows * h));
    c.fillStyle = css('--dim');
    c.textAlign = 'right';
    for (let row = 0; row < rows; row += Math.ceil(11 / h)) c.fillText(String(first + row), LEFT - 5, TOP + row * h + Math.max(h, 9) / 2 + 0.5);
    c.fillText('step', LEFT - 5, STRIP - 6);
    c.textAlign = 'left';
    this.drawTimes(c, w);
    // Spans of one fill follow one another
    const visible = this.spans.filter(this.isShown), key = (s) => this.alpha(s.no) * 99 + (s.no && ((s.no - 1) % 6) + 1) * 8 + (s.work === 2 ? 4 : s.work);
    for (const s of [...visible].sort((a, b) => key(a) - key(b))) {
      const x = edge(s.at), y = top(s.row) + 1, wide = Math.max(1, edge(s.at + s.n) - x - 0.5);
      c.globalAlpha = this.alpha(s.no);
      c.fillStyle = fillOf(c, colour(s.no), s.no ? KIND[s.work] : s.work ? '\\' : '/');
      c.fillRect(x, y, wide, h - 1);
      c.fillStyle = css('--edge');
      if (h > 5) for (const line of [y, y + h - 2]) c.fillRect(x, line, wide, 1);
      if (s.work !== 2) continue;
      const r = clamp(h / 3, 1.2, 3.5);
      c.fillStyle = ink(s.no);
      c.beginPath();
      c.arc(x + wide - r, y + (h - 1) / 2, r, 0, 7);
      c.fill();
    }
    if (h > 7) this.drawNumbers(c, visible);
    c.globalAlpha = 1;
    c.font = FONT;
    c.strokeStyle = css('--text');
    c.lineWidth = 1.6;
    for (const p of this.preempted.filter(this.isShown)) {
      const x = edge(p.at), y = top(p.row) + h / 2, r = Math.min(4, h / 2);
      c.beginPath();
      c.moveTo(x - r, y - r), c.lineTo(x + r, y + r), c.moveTo(x - r, y + r), c.lineTo(x + r, y - r);
      c.stroke();
    }
    list.forEach((p, i) => p.gap > 0 && this.drawGap(c, from + i, bottom, w));
    if (this.cursor && this.cursor.at >= from) {
      const x = edge(this.cursor.at);
      c.lineWidth = 2;
      c.strokeRect(x - 1, top(this.cursor.row), Math.max(4, edge(this.cursor.at + 1) - x + 2), h + 1);
    }
  }

  /** Draw the time of each step; name the prompt of one that holds up all rows. */
  drawTimes(c, w) {
    const { list, from } = this.view, us = list.filter((p) => !p.gap).map((p) => p.us).sort((a, b) => a - b);
    const median = us[us.length >> 1] ?? 0, limit = Math.max(STALL_US, 3 * median), top = us.at(-1) || 1;
    let free = 0;
    list.forEach((p, i) => {
      const x = this.edge(from + i), tall = ((STRIP - 14) * p.us) / top, at = from + i;
      const prompts = p.us > limit ? this.spans.filter((s) => !s.work && s.at <= at && at < s.at + s.n) : [];
      const [cause] = prompts.sort((a, b) => b.tokens / b.n - a.tokens / a.n);
      c.fillStyle = css(cause ? '--bad' : '--bar');
      c.fillRect(x, STRIP - tall, Math.max(1, this.edge(at + 1) - x - 0.5), tall);
      if (!cause || x < free) return;
      const text = `▼ ${time(p.us)}, ${cause.no ? `prompt of ${cause.no}` : 'a prompt'}`, wide = c.measureText(text).width;
      c.fillText(text, Math.min(x - 3, w - wide), 7);
      free = x + wide + 8;
    });
    this.note = us.length ? `last ${count(us.length, 'step')}, median ${time(median)}, longest ${time(top)}` : '';
  }

  /** Number each request once per row, where there is room. */
  drawNumbers(c, spans) {
    const runs = new Map(), h = this.height, tall = Math.min(h - 1, 13);
    c.font = `${Math.min(10, h)}px system-ui, sans-serif`;
    const write = ({ no, row, at, end }) => {
      const x = this.edge(at), text = String(no), wide = c.measureText(text).width + 5;
      if (!no || this.edge(end) - x < wide) return;
      c.globalAlpha = this.alpha(no);
      c.fillStyle = colour(no);
      c.fillRect(x, this.top(row) + 1 + (h - tall) / 2, wide, tall - 1);
      c.fillStyle = ink(no);
      c.fillText(text, x + 2.5, this.top(row) + h / 2 + 1);
    };
    for (const { row, at, n, no } of spans) {
      const run = runs.get(row);
      if (run?.no === no && run.end === at) run.end += n;
      else run && write(run), runs.set(row, { row, no, at, end: at + n });
    }
    runs.forEach(write);
  }

  drawGap(c, at, bottom, w) {
    const x0 = this.edge(at), wide = this.edge(at + GAP) - x0, text = `${count(this.view.list[at - this.view.from].gap, 'step')} not shown`, long = c.measureText(text).width;
    const x = clamp(x0 + (wide - long) / 2, LEFT, w - long - 4);
    c.fillStyle = css('--page');
    c.fillRect(x0, STRIP, wide, bottom - STRIP);
    c.fillRect(x - 3, 0, long + 6, 14);
    c.fillStyle = css('--text');
    c.fillText(text, x, 7);
    c.beginPath();
    for (let y = STRIP; y <= bottom; y += 7) c.lineTo(x0 + wide * (y % 2 ? 0.3 : 0.7), y);
    c.stroke();
  }

  /** Return the cell under a point of the canvas. */
  cellAt(px, py) {
    const row = this.shown.first + Math.floor((py - TOP) / this.height), i = this.view.x.findLastIndex((edge) => edge <= px);
    return py < TOP || row >= this.shown.first + this.shown.num || i < 0 || i >= this.view.list.length ? null : { row, at: this.view.from + i };
  }

  /** Move the cursor by cells. */
  move(rows, columns) {
    const { first, num: n } = this.shown, at = this.cursor ?? { row: first - rows, at: this.head - 1 - columns };
    this.cursor = { row: clamp(at.row + rows, first, first + n - 1), at: clamp(at.at + columns, this.view.from, this.head - 1) };
  }

  /** Return the span at the cursor. */
  get current() {
    const at = this.cursor;
    return at ? this.spans.findLast((s) => s.row === at.row && s.at <= at.at && at.at < s.at + s.n) : undefined;
  }

  /** Say what is at the cursor. */
  describe() {
    const { row, at } = this.cursor ?? { row: 0, at: -1 }, s = this.current, column = this.view.list[at - this.view.from];
    if (!column) return '';
    if (column.gap) return 'Steps that are not shown: this page was hidden, paused or too slow';
    const step = `Row ${row}, step ${num(column.step)} of ${time(column.us)} with ${count(column.tokens, 'token')}: `;
    if (!s) return step + 'idle';
    const known = this.requests.get(s.no), drafts = s.work === 3 ? `, ${num(s.accepted)} drafts accepted` : '';
    const end = known?.reason ? `; ended: ${known.reason}, ${count(known.output, 'token')}` : '';
    const name = s.no ? `request ${s.no}${known?.id ? ` “${known.id.slice(0, 60)}”` : ''}` : 'a request of another tenant';
    return `${step}${name}, ${WORK[s.work]}, ${count(s.tokens, 'token')} in ${count(s.n, 'step')}${drafts}${end}`;
  }

  /** Show the same as a table, and say it in one sentence. */
  tell() {
    const { first, num: n } = this.shown, oldest = this.head - this.columns.length;
    const rows = Array.from({ length: n }, (_, i) => {
      const spans = this.spans.filter((s) => s.row === first + i), s = spans.at(-1), now = s && s.at + s.n >= this.head && s.work !== 2;
      const steps = spans.reduce((sum, t) => sum + t.n - Math.max(0, oldest - t.at), 0), tokens = spans.reduce((sum, t) => sum + t.tokens, 0);
      return [first + i, now ? s.no || 'another tenant' : '–', now ? WORK[s.work] : 'idle', num(tokens), num(steps)];
    });
    const busy = rows.filter((r) => r[1] !== '–').length;
    label($('rows'), `${busy} of rows ${first} to ${first + n - 1} computed in the last step; ${this.note || 'no step yet'}.`);
    if (document.body.classList.contains('tables')) fill($('rowsTable'), 'Rows', ['Row', 'Request', 'Work', 'Tokens', 'Busy steps'], rows);
  }
}

/** Draw 64 bands over all rows: output from below, prompts hatched above it, the rest idle. */
export function drawBands(bands, lens, total) {
  const { c, w } = pen($('bands'), 50), one = w / bands.length, H = 46;
  bands.forEach(([prefill, decode, idle], i) => {
    const full = H / (prefill + decode + idle || 1);
    const bar = (shade, y, tall) => ((c.fillStyle = shade), c.fillRect(i * one + 0.5, y, one - 1, tall));
    bar(css('--grid'), H + 1, 1);
    bar(css('--own'), H - decode * full, decode * full);
    bar(fillOf(c, css('--own'), '/'), H - (decode + prefill) * full, prefill * full);
  });
  c.strokeStyle = css('--text');
  c.lineWidth = 2;
  c.strokeRect(1 + ((w - 2) * lens.first) / total, 1, Math.max(4, ((w - 2) * lens.num) / total), H + 2);
}
