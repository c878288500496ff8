'use strict';
/** The viewer of timelines: rows on canvases that share one range, lanes below, a table of the same. */
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const { timelines, colours, parts } = data;
  const PREFILL = 0, FINISH = 2, VERIFY = 3, MAX_ROWS = 256, MAX_TABLE = 1000, NARROW = 1.5;
  const WORK = ['prompt', 'one token', 'last token', 'checks drafts'];
  const PART_COLOURS = [0, 4, 2, 1, 3].map((i) => colours[i]);
  const LANES = [
    { name: 'waiting', of: (t, i) => t.num_waiting[i], words: (v) => num(v) },
    { name: 'KV used', of: (t, i) => (100 * Math.max(0, t.num_used_blocks[i])) / t.num_blocks, words: (v) => `${Number(v.toPrecision(2))} %`,
      known: (t) => t.num_blocks > 0 && t.num_used_blocks.some((n) => n >= 0) },
    { name: 'step', of: (t, i) => t.duration_us[i] / 1e3, words: (v) => `${short(v)} ms` },
  ].map((lane) => ({ known: () => true, ...lane }));
  const state = { unit: data.unit, from: 0, to: 1, cursor: null, row: null, panel: 0, brush: null, asTable: false };

  const num = (n) => Math.round(n).toLocaleString('en');
  const short = (n) => String(Number(n.toPrecision(3)));
  const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
  const colourOf = (number) => colours[(number - 1) % colours.length];
  const inkOn = (colour) => (colour === colours[0] ? '#ffffff' : '#111111');
  const shade = (colour) => `#${[1, 3, 5].map((i) => Math.round(parseInt(colour.slice(i, i + 2), 16) * 0.72).toString(16).padStart(2, '0')).join('')}`;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Make an element with attributes and children. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
      else if (value !== false) element.setAttribute(name, value === true ? '' : value);
    }
    element.append(...children);
    return element;
  }

  for (const t of timelines) {
    t.num_steps = t.start_us.length;
    t.end_us = t.num_steps ? t.start_us[t.num_steps - 1] + t.duration_us[t.num_steps - 1] : 0;
    t.rows = Array.from({ length: t.num_rows }, () => []);
    for (const span of t.spans) t.rows[span[0]].push(span);
    t.busy = new Int32Array(t.num_steps + 1);
    for (const [, first, n] of t.spans) t.busy[first]++, t.busy[first + n]--;
    for (let i = 1; i <= t.num_steps; i++) t.busy[i] += t.busy[i - 1];
  }

  const length = () => Math.max(1, ...timelines.map((t) => (state.unit === 'step' ? t.num_steps : t.end_us)));
  const begin = (t, step) => (state.unit === 'step' ? step : step < t.num_steps ? t.start_us[step] : t.end_us);
  const end = (t, step) => (state.unit === 'step' ? step + 1 : t.start_us[step] + t.duration_us[step]);
  const shownRows = (t) => Math.min(MAX_ROWS, t.num_rows);

  /** Return the first step that ends behind a place of the axis. */
  function stepAt(t, place) {
    let low = 0, high = t.num_steps;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end(t, middle) > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function words(place) {
    if (state.unit === 'step') return num(place);
    return length() < 1e6 ? `${short(place / 1e3)} ms` : `${Number((place / 1e6).toPrecision(5))} s`;
  }

  // --- canvases -------------------------------------------------------------------------------

  const left = () => (innerWidth < 640 ? 60 : 76);
  let patterns = new Map();

  /** Return the fill of a kind of work in a colour. */
  function fillOf(c, colour, work) {
    if (work !== PREFILL && work !== VERIFY) return colour;
    const key = `${colour}${work}`;
    if (!patterns.has(key)) {
      const tile = make('canvas', { width: 6, height: 6 }), p = tile.getContext('2d');
      p.fillStyle = work === PREFILL ? shade(colour) : colour;
      p.fillRect(0, 0, 6, 6);
      p.strokeStyle = work === PREFILL ? 'rgba(255,255,255,.5)' : 'rgba(17,17,17,.55)';
      p.lineWidth = 1.6;
      p.beginPath();
      if (work === PREFILL) for (const x of [-6, 0, 6]) p.moveTo(x - 1, 7), p.lineTo(x + 7, -1);
      else p.moveTo(0, 1), p.lineTo(6, 1);
      p.stroke();
      patterns.set(key, c.createPattern(tile, 'repeat'));
    }
    return patterns.get(key);
  }

  function pen(canvas, height) {
    const ratio = Math.min(2, devicePixelRatio || 1), width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const c = canvas.getContext('2d');
    c.scale(ratio, ratio);
    c.font = '12px ui-sans-serif, system-ui, Arial, sans-serif';
    c.textBaseline = 'middle';
    return { c, plot: width - left() - 4 };
  }

  const rowHeight = (t) => [[8, 26], [16, 18], [32, 12], [64, 8], [MAX_ROWS, 5]].find(([most]) => shownRows(t) <= most)[1];

  function drawRows(panel) {
    const { t, canvas } = panel, tall = rowHeight(t), rows = shownRows(t), { c, plot } = pen(canvas, rows * tall + 22);
    const scale = plot / (state.to - state.from), x = (place) => left() + (place - state.from) * scale;
    const right = left() + plot, stop = Math.min(right, x(begin(t, t.num_steps)));
    c.textAlign = 'right';
    for (let row = 0; row < rows; row++) {
      c.fillStyle = css('--idle');
      if (stop > left()) c.fillRect(left(), row * tall, stop - left(), tall - 1);
      c.fillStyle = css('--quiet');
      if (tall >= 12 || row % 8 === 0) c.fillText(tall >= 12 ? `row ${row}` : String(row), left() - 6, row * tall + tall / 2);
    }
    c.save();
    c.beginPath();
    c.rect(left(), 0, plot, rows * tall);
    c.clip();
    const from = stepAt(t, state.from), marks = [];
    for (let row = 0; row < rows; row++) drawRow(c, t, row, tall, x, from, marks);
    for (const mark of marks) drawMark(c, mark, tall);
    for (const [step, n] of t.gaps) {
      c.strokeStyle = css('--ink');
      c.setLineDash([3, 3]);
      c.beginPath(), c.moveTo(x(begin(t, step)), 0), c.lineTo(x(begin(t, step)), rows * tall), c.stroke();
      c.setLineDash([]);
      panel.note = `${num(n)} steps were not recorded`;
    }
    c.restore();
    drawAxis(c, x, right, rows * tall);
    drawCursor(c, x, rows * tall);
  }

  /** Draw the spans of a row; those that are narrower than a column share it. */
  function drawRow(c, t, row, tall, x, from, marks) {
    const spans = t.rows[row], y = row * tall, h = tall - 1;
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][1] + spans[middle][2] > from) high = middle;
      else low = middle + 1;
    }
    let run = null, held = null;
    const paint = (start, width, request, work) => {
      c.fillStyle = fillOf(c, colourOf(t.requests[request][0]), work);
      c.fillRect(start, y, Math.max(0.4, width), h);
    };
    const release = () => {
      if (!held) return;
      const [key] = [...held.weights].reduce((a, b) => (b[1] > a[1] ? b : a));
      paint(held.start, held.stop - held.start, Math.floor(key / 4), key % 4);
      held = null;
    };
    const number = () => {
      if (!run || tall < 11) return;
      const text = String(t.requests[run.request][0]), wide = c.measureText(text).width + 6;
      const start = Math.max(left(), run.start), stop = Math.min(left() + c.canvas.clientWidth, run.stop);
      if (stop - start < wide + 14) return;
      const middle = (start + stop) / 2, colour = colourOf(t.requests[run.request][0]);
      c.fillStyle = colour;
      c.fillRect(middle - wide / 2, y, wide, h);
      c.fillStyle = inkOn(colour);
      c.textAlign = 'center';
      c.font = '700 12px ui-sans-serif, system-ui, Arial, sans-serif';
      c.fillText(text, middle, y + h / 2 + 0.5);
      c.font = '12px ui-sans-serif, system-ui, Arial, sans-serif';
    };
    for (let i = low; i < spans.length; i++) {
      const [, first, n, request, work] = spans[i], start = x(begin(t, first)), stop = x(end(t, first + n - 1));
      if (begin(t, first) >= state.to) break;
      if (run && run.request === request && run.next === first) (run.stop = stop), (run.next = first + n);
      else number(), (run = { request, start, stop, next: first + n });
      if (work === FINISH) marks.push({ start, stop, y, request: t.requests[request][0], isEnd: true });
      if (stop - start < NARROW) {
        if (held && stop - held.start > NARROW) release();
        held ??= { start, stop, weights: new Map() };
        held.stop = stop;
        const key = request * 4 + work;
        held.weights.set(key, (held.weights.get(key) ?? 0) + stop - start);
        continue;
      }
      release();
      const one = (stop - start) / n;
      // Steps can be counted where they are wide.
      if (one >= 5) for (let step = first; step < first + n; step++) {
        const a = x(begin(t, step));
        if (a > left() + c.canvas.clientWidth) break;
        paint(a, x(end(t, step)) - a - 1, request, work);
      } else paint(start, stop - start, request, work);
    }
    release();
    number();
    for (const [lost, step, request] of t.preempted) if (lost === row) {
      marks.push({ start: x(begin(t, step)), stop: x(end(t, step)), y, request: t.requests[request][0], isEnd: false });
    }
  }

  function drawMark(c, { start, stop, y, request, isEnd }, tall) {
    const r = clamp((stop - start) / 2 - 1, 1.6, Math.max(1.6, tall * 0.17)), at = Math.min((start + stop) / 2, stop - r - 0.5), middle = y + (tall - 1) / 2;
    c.beginPath();
    if (isEnd) {
      c.fillStyle = inkOn(colourOf(request));
      c.arc(at, middle, r, 0, 7);
      c.fill();
      return;
    }
    const s = r + 1;
    c.moveTo(at - s, middle - s), c.lineTo(at + s, middle + s), c.moveTo(at - s, middle + s), c.lineTo(at + s, middle - s);
    for (const [width, colour] of [[3.5, '#ffffff'], [1.7, '#111111']]) (c.lineWidth = width), (c.strokeStyle = colour), c.stroke();
    c.lineWidth = 1;
  }

  function drawAxis(c, x, right, y) {
    const span = state.to - state.from, most = Math.max(2, Math.floor((right - left()) / 64)), power = 10 ** Math.floor(Math.log10(span / most));
    const every = Math.max(state.unit === 'step' ? 1 : 0, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= span / most));
    c.fillStyle = css('--quiet');
    c.textAlign = 'center';
    for (let place = Math.ceil(state.from / every) * every; place <= state.to; place += every) {
      const at = x(place), text = words(place), half = c.measureText(text).width / 2;
      c.fillRect(at, y, 1, 4);
      if (at + half < right + 4 && at - half > left() - 24) c.fillText(text, at, y + 13);
    }
    c.textAlign = 'left';
    c.fillText(state.unit, 0, y + 13);
  }

  function drawCursor(c, x, bottom) {
    if (state.brush) {
      c.fillStyle = 'rgba(0,114,178,.25)';
      c.fillRect(x(Math.min(...state.brush)), 0, Math.abs(x(state.brush[0]) - x(state.brush[1])), bottom);
    }
    if (state.cursor === null) return;
    c.strokeStyle = css('--cursor');
    c.lineWidth = 1;
    c.beginPath(), c.moveTo(x(state.cursor), 0), c.lineTo(x(state.cursor), bottom), c.stroke();
  }

  function drawLane({ lane, canvas }) {
    const tall = 54, { c, plot } = pen(canvas, tall + 8), scale = plot / (state.to - state.from), x = (place) => left() + (place - state.from) * scale;
    const known = timelines.filter(lane.known), series = known.map((t) => highest(t, lane, x, plot));
    const top = Math.max(0, ...series.flat().map((point) => point.value)) || 1, y = (value) => tall - (value / top) * (tall - 6);
    c.fillStyle = css('--grid');
    c.fillRect(left(), tall, plot, 1);
    c.textAlign = 'right';
    c.fillStyle = css('--ink');
    c.fillText(lane.name, left() - 6, 12);
    c.fillStyle = css('--quiet');
    c.fillText(lane.words(top), left() - 6, 28);
    c.save();
    c.beginPath(), c.rect(left(), 0, plot, tall + 1), c.clip();
    known.forEach((t, i) => {
      const points = series[i], isStep = lane.name === 'step';
      if (timelines.length === 1) {
        const layers = isStep && t.parts_us.length ? parts.map((_, p) => p).reverse() : [-1];
        for (const part of layers) {
          c.fillStyle = part < 0 ? colours[4] : PART_COLOURS[part];
          for (const { start, stop, step, value } of points) {
            const v = part < 0 ? value : t.parts_us[step].slice(0, part + 1).reduce((a, b) => a + b, 0) / 1e3;
            c.fillRect(start, y(v), Math.max(0.6, stop - start), tall - y(v));
          }
        }
        return;
      }
      c.strokeStyle = t.colour;
      c.setLineDash(t.dashes);
      c.lineWidth = 1.5;
      c.beginPath();
      for (const { start, stop, value } of points) c.lineTo(start, y(value)), c.lineTo(stop, y(value));
      c.stroke();
      c.setLineDash([]);
    });
    c.restore();
    drawCursor(c, x, tall);
  }

  /** Return the steps in view; of those that begin in one pixel the highest, so that no peak is hidden. */
  function highest(t, lane, x) {
    const points = [];
    for (let step = stepAt(t, state.from); step < t.num_steps && begin(t, step) < state.to; step++) {
      const start = x(begin(t, step)), stop = x(end(t, step)), value = lane.of(t, step), last = points.at(-1);
      if (last && Math.floor(last.start) === Math.floor(start)) {
        last.stop = stop;
        if (value > last.value) (last.value = value), (last.step = step);
      } else points.push({ start, stop, step, value });
    }
    return points;
  }

  // --- words ----------------------------------------------------------------------------------

  function describe() {
    if (state.cursor === null) return '';
    return timelines.map((t, i) => {
      const step = stepAt(t, state.cursor);
      if (step >= t.num_steps) return `${t.name}: ended`;
      if (begin(t, step) > state.cursor) return `${t.name}: no step`;
      const line = `${t.name}: step ${num(step)}, ${short(t.duration_us[step] / 1e3)} ms, ${t.busy[step]} of ${t.num_rows} rows, ${num(t.num_tokens[step])} tokens, ${num(t.num_waiting[step])} waiting`;
      if (state.row === null || i !== state.panel) return line;
      const span = t.rows[state.row]?.find(([, first, n]) => first <= step && step < first + n);
      if (!span) return `${line}; row ${state.row}: idle`;
      const [, , n, request, work, tokens, accepted] = span, [number, label] = t.requests[request];
      const drafts = work === VERIFY ? `, ${num(accepted)} drafts accepted` : '';
      return `${line}; row ${state.row}: request ${number}${label ? ` (${label})` : ''}, ${WORK[work]}, ${num(tokens)} tokens in ${num(n)} steps${drafts}`;
    }).join('\n');
  }

  function runsInView(t) {
    const runs = [], from = stepAt(t, state.from);
    for (const spans of t.rows) {
      let run = null;
      for (const [row, first, n, request, work, tokens, accepted] of spans) {
        if (run?.request === request && run.end === first) Object.assign(run, { end: first + n, tokens: run.tokens + tokens, accepted: run.accepted + accepted, work });
        else runs.push((run = { row, request, first, end: first + n, tokens, accepted, work }));
      }
    }
    const lost = new Set(t.preempted.map(([row, step]) => `${row} ${step}`));
    for (const run of runs) run.outcome = lost.has(`${run.row} ${run.end - 1}`) ? 'preempted' : run.work === FINISH ? 'ended' : '';
    return runs.filter((run) => run.end > from && begin(t, run.first) < state.to).sort((a, b) => a.first - b.first || a.row - b.row);
  }

  function table(t) {
    const runs = runsInView(t), head = ['row', 'request', 'first step', 'steps', 'tokens computed', 'drafts accepted', 'outcome'];
    const body = runs.slice(0, MAX_TABLE).map((run) => [run.row, t.requests[run.request][0], num(run.first), num(run.end - run.first), num(run.tokens), num(run.accepted), run.outcome]);
    const more = runs.length > MAX_TABLE ? `; the first ${num(MAX_TABLE)} of ${num(runs.length)}, zoom in for others` : '';
    return make('table', {}, make('caption', {}, `${t.name}: requests in rows, in view${more}`),
      make('thead', {}, make('tr', {}, ...head.map((word) => make('th', { scope: 'col' }, word)))),
      make('tbody', {}, ...body.map((cells) => make('tr', {}, ...cells.map((cell) => make('td', {}, String(cell)))))));
  }

  // --- the page -------------------------------------------------------------------------------

  const panels = timelines.map((t, index) => ({ t, index, canvas: make('canvas', { tabindex: 0, role: 'img' }) }));
  const lanes = LANES.filter((lane) => timelines.some(lane.known)).map((lane) => ({ lane, canvas: make('canvas', { role: 'img' }) }));
  const range = make('span', { class: 'range' }), status = make('p', { class: 'cursor', role: 'status' }), tables = make('div', { class: 'tables', hidden: true });
  const button = (text, label, act, pressed) => make('button', { type: 'button', title: label, 'aria-label': label, onclick: act, ...(pressed === undefined ? {} : { 'aria-pressed': pressed }) }, text);
  const units = ['step', 'time'].map((unit) => button(unit, `x axis: ${unit}`, () => choose(unit), 'false'));
  const tableButton = button('table', 'table of what is in view (T)', () => toggleTable(), 'false');

  function key(colour, work, text, mark) {
    const canvas = make('canvas', { width: 44, height: 24, 'aria-hidden': 'true' }), c = canvas.getContext('2d');
    canvas.style.cssText = 'display:inline-block;width:22px;height:12px;vertical-align:-1px;margin-right:6px';
    c.scale(2, 2);
    c.fillStyle = work === null ? css('--idle') : fillOf(c, colour, work);
    c.fillRect(0, 0, 22, 12);
    if (mark) drawMark(c, { start: 4, stop: 18, y: 0, request: 2, isEnd: mark === 'end' }, 13);
    return make('li', {}, canvas, text);
  }

  function legend() {
    const items = [key(colours[1], PREFILL, 'prompt'), key(colours[1], 1, 'one token')];
    if (timelines.some((t) => t.spans.some((span) => span[4] === VERIFY))) items.push(key(colours[1], VERIFY, 'checks drafts'));
    items.push(key(colours[1], 1, 'last token', 'end'));
    if (timelines.some((t) => t.preempted.length)) items.push(key(colours[1], 1, 'preempted', 'cross'));
    items.push(key('', null, 'idle'));
    const named = timelines.length > 1 ? timelines.map((t) => [t.colour, t.name, t.dashes]) : timelines.some((t) => t.parts_us.length) ? parts.map((part, i) => [PART_COLOURS[i], part, []]) : [];
    for (const [colour, text, dashes] of named) {
      const canvas = make('canvas', { width: 44, height: 24, 'aria-hidden': 'true' }), c = canvas.getContext('2d');
      canvas.style.cssText = 'display:inline-block;width:22px;height:12px;vertical-align:-1px;margin-right:6px';
      c.scale(2, 2);
      c.strokeStyle = colour;
      c.lineWidth = timelines.length > 1 ? 2 : 8;
      c.setLineDash(dashes);
      c.beginPath(), c.moveTo(0, 6), c.lineTo(22, 6), c.stroke();
      items.push(make('li', {}, canvas, text));
    }
    return make('ul', { class: 'legend' }, ...items);
  }

  function requests() {
    const labels = new Map(timelines.flatMap((t) => t.requests.filter(([, label]) => label)));
    if (labels.size > 64) return '';
    return make('ul', { class: 'legend' }, ...[...labels].sort((a, b) => a[0] - b[0]).map(([number, label]) => {
      const chip = make('i', {}, String(number));
      chip.style.background = colourOf(number);
      chip.style.color = inkOn(colourOf(number));
      return make('li', {}, chip, label);
    }));
  }

  let isDue = false;
  function draw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      panels.forEach(drawRows);
      lanes.forEach(drawLane);
      status.textContent = describe();
      range.textContent = `${words(state.from)} to ${words(state.to)}`;
      if (state.asTable) tables.replaceChildren(...timelines.map(table));
      for (const { t, canvas } of panels) canvas.setAttribute('aria-label', `${t.name}: ${t.words}; in view ${range.textContent}. T shows a table.`);
      for (const { lane, canvas } of lanes) canvas.setAttribute('aria-label', `${lane.name} over the same range`);
    });
  }

  function show(from, to) {
    const whole = length(), least = state.unit === 'step' ? Math.min(4, whole) : Math.max(1, whole / 1e5), wide = clamp(to - from, least, whole);
    state.from = clamp(from, 0, whole - wide);
    state.to = state.from + wide;
    try {
      history.replaceState(null, '', `#x=${state.unit}&from=${Math.round(state.from)}&to=${Math.round(state.to)}`);
    } catch { /* A page without an address of its own keeps no range. */ }
    draw();
  }

  const fit = () => show(0, length());
  function zoom(factor, at = state.cursor ?? (state.from + state.to) / 2) {
    const around = clamp(at, state.from, state.to);
    show(around - (around - state.from) * factor, around + (state.to - around) * factor);
  }
  const pan = (part) => show(state.from + part * (state.to - state.from), state.to + part * (state.to - state.from));

  function choose(unit) {
    // The range stays at the same steps of the first timeline.
    const t = timelines[0], [from, to] = [stepAt(t, state.from), stepAt(t, state.to)], isWhole = state.to - state.from >= length();
    state.unit = unit;
    state.cursor = null;
    units.forEach((b) => b.setAttribute('aria-pressed', String(b.textContent === unit)));
    if (isWhole || from >= t.num_steps) fit();
    else show(begin(t, from), begin(t, Math.max(from + 1, to)));
  }

  function toggleTable() {
    state.asTable = !state.asTable;
    tables.hidden = !state.asTable;
    tableButton.setAttribute('aria-pressed', String(state.asTable));
    draw();
  }

  const placeOf = (canvas, event) => state.from + ((event.offsetX - left()) / (canvas.clientWidth - left() - 4)) * (state.to - state.from);

  function follow(canvas, panel) {
    canvas.addEventListener('pointermove', (event) => {
      state.cursor = clamp(placeOf(canvas, event), state.from, state.to);
      if (state.brush) state.brush[1] = state.cursor;
      if (panel) {
        const row = Math.floor(event.offsetY / rowHeight(panel.t));
        state.row = row < shownRows(panel.t) ? row : null;
        state.panel = panel.index;
      }
      draw();
    });
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button || event.pointerType === 'touch') return;
      canvas.setPointerCapture(event.pointerId);
      state.brush = [placeOf(canvas, event), placeOf(canvas, event)];
    });
    canvas.addEventListener('pointerup', () => {
      const brush = state.brush;
      state.brush = null;
      if (brush && Math.abs(brush[0] - brush[1]) > (state.to - state.from) / 100) show(Math.min(...brush), Math.max(...brush));
      else draw();
    });
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(Math.sign(event.deltaX) * 0.1);
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, placeOf(canvas, event));
    }, { passive: false });
  }

  /** Move the cursor by steps of the timeline that has it. */
  function step(by) {
    const t = timelines[state.panel], at = clamp((state.cursor === null ? stepAt(t, state.from) - by : stepAt(t, state.cursor)) + by, 0, t.num_steps - 1);
    state.cursor = (begin(t, at) + end(t, at)) / 2;
    if (state.cursor < state.from || state.cursor > state.to) show(state.cursor - (state.to - state.from) / 2, state.cursor + (state.to - state.from) / 2);
    draw();
  }

  const KEYS = {
    w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), f: fit, t: toggleTable,
    ArrowLeft: () => step(-1), ArrowRight: () => step(1),
    ArrowUp: () => ((state.row = Math.max(0, (state.row ?? 1) - 1)), draw()),
    ArrowDown: () => ((state.row = Math.min(shownRows(timelines[state.panel]) - 1, (state.row ?? -1) + 1)), draw()),
  };
  addEventListener('keydown', (event) => {
    const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const isArrow = event.key.startsWith('Arrow');
    if (!act || event.ctrlKey || event.metaKey || event.altKey || (isArrow && document.activeElement?.tagName !== 'CANVAS')) return;
    event.preventDefault();
    act();
  });

  function restore() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (['step', 'time'].includes(wanted.get('x'))) state.unit = wanted.get('x');
    units.forEach((b) => b.setAttribute('aria-pressed', String(b.textContent === state.unit)));
    const [from, to] = ['from', 'to'].map((name) => Number(wanted.get(name) ?? NaN));
    if (Number.isFinite(from) && to > from) show(from, to);
    else fit();
  }

  const viewer = document.getElementById('viewer');
  viewer.append(
    make('div', { class: 'bar' }, ...units, button('fit', 'show all (F)', fit), button('+', 'zoom in (W)', () => zoom(0.7)), button('−', 'zoom out (S)', () => zoom(1 / 0.7)),
      button('◀', 'to the left (A)', () => pan(-0.2)), button('▶', 'to the right (D)', () => pan(0.2)), tableButton, range),
    ...panels.flatMap(({ t, index, canvas }) => {
      const more = t.num_rows > MAX_ROWS ? `; drawn: rows 0 to ${MAX_ROWS - 1}` : '';
      canvas.addEventListener('focus', () => (state.panel = index));
      return [make('h2', {}, t.name, make('span', {}, `${t.words}${more}`)), make('figure', {}, canvas)];
    }),
    ...lanes.map(({ canvas }) => make('figure', {}, canvas)),
    status, legend(), requests(),
    make('p', { class: 'keys' }, 'W and S or the wheel zoom, A and D move, F shows all, T shows a table. Drag to zoom into a range. Arrows move the cursor on a focused figure.'),
    tables,
  );
  panels.forEach((panel) => follow(panel.canvas, panel));
  lanes.forEach(({ canvas }) => follow(canvas, null));
  document.getElementById('still').hidden = true;
  viewer.hidden = false;
  restore();
  new ResizeObserver(draw).observe(viewer);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    patterns = new Map();
    draw();
  });
  addEventListener('hashchange', restore);
})();
