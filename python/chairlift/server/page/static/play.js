/** The playground: many prompts over one response, since a browser opens six connections. */
import { auth, events, refusal } from './feed.js';
import { $, badge, count, el, label, say, time } from './theme.js';

/** Prompts of unequal length, and the longest answer of each: those of `chairlift demo`. @type {[string, number][]} */
const DEMO = [
  ['Tell me a story about a fox and a river.', 64], ['Hello!', 32], ['Why is the sky blue?', 64], ['What is continuous batching?', 64],
  ['Write a poem about the sea.', 64], ['What is a chairlift?', 64], ['Count down from 10.', 32],
];
const MOST = 64;

export class Play {
  /** @type {Answer[]} */
  answers = [];
  /** @type {Set<AbortController>} */
  open = new Set();
  /** @type {Hello | null} */
  hello = null;
  next = 1;
  timer = 0;
  reason = '';

  /** `placeOf(handle)` returns number and row of a request. */
  constructor(placeOf) {
    this.placeOf = placeOf;
    $('demo1').onclick = $('demo2').onclick = () => this.send(DEMO);
    $('cancelAll').onclick = () => this.open.forEach((abort) => abort.abort());
    $('playForm').onsubmit = (event) => {
      event.preventDefault();
      const lines = $('prompts').value.split('\n').map((l) => l.trim()).filter(Boolean);
      if (!lines.length) return this.note('Write a prompt first.');
      this.send(lines.map((text) => [text, $('maxTokens').valueAsNumber || 64]));
    };
  }

  /** Enable or disable, with the reason. */
  allow(reason) {
    for (const id of ['demo1', 'demo2', 'send']) $(id).disabled = !!reason;
    if (reason !== this.reason) this.note(reason);
    this.reason = reason;
  }

  note(text) {
    $('playNote').textContent = text;
  }

  body(prompt, max_tokens, id) {
    const chat = this.hello?.model.has_chat_template ?? true;
    return {
      id, max_tokens, temperature: $('temperature').valueAsNumber || 0, model: this.hello?.model.name,
      ...(chat ? { messages: [{ role: 'user', content: prompt }] } : { prompt }),
    };
  }

  async send(prompts) {
    if (prompts.length > MOST) return this.note(`At most ${MOST} prompts at once: these are ${prompts.length}.`);
    const batch = prompts.map(([prompt]) => this.answer(prompt, String(this.next++)));
    const requests = prompts.map(([prompt, most], i) => this.body(prompt, most, batch[i].id));
    this.note('');
    this.answers = [...this.answers.filter((a) => !a.end), ...batch];
    $('answers').replaceChildren(...this.answers.map((a) => a.node));
    const byId = new Map(batch.map((a) => [a.id, a])), abort = new AbortController();
    this.open.add(abort);
    $('cancelAll').hidden = false;
    let lost = 'the connection was lost';
    try {
      const response = await fetch('/page/runs', {
        method: 'POST', body: JSON.stringify({ requests }), signal: abort.signal,
        headers: { 'content-type': 'application/json', ...auth() },
      });
      if (!response.ok) throw (lost = 'refused'), new Error(await refusal(response));
      for await (const [name, data] of events(response)) {
        const answer = data && byId.get(data.id);
        if (answer) this.take(answer, name, data);
      }
    } catch (error) {
      if (abort.signal.aborted) lost = 'cancelled';
      else this.note(`Not sent or lost: ${error.message}`);
    }
    batch.forEach((a) => (a.end ||= lost));
    this.open.delete(abort);
    $('cancelAll').hidden = !this.open.size;
    this.draw();
    say(`${count(batch.length, 'answer')} ended`);
  }

  /** @returns {Answer} */
  answer(prompt, id) {
    const parts = { badge: el('span', {}, badge(0)), row: el('span', { className: 'dim' }), text: el('p'), meta: el('span', { className: 'dim' }) };
    const cancel = el('button', { type: 'button', textContent: 'Cancel', disabled: true });
    label(cancel, `Cancel: ${prompt.slice(0, 60)}`);
    const node = el('li', {}, el('div', {}, parts.badge, ' ', el('b', {}, prompt), ' ', parts.row), parts.text, el('div', { className: 'bar' }, cancel, parts.meta));
    const answer = { id, node, ...parts, cancel, handle: '', no: 0, out: '', n: 0, end: '', ttft: null, itl: [], started: performance.now() };
    cancel.onclick = async () => {
      cancel.disabled = true;
      const response = await fetch(`/page/runs/${encodeURIComponent(answer.handle)}/cancel`, { method: 'POST', headers: auth() }).catch(() => null);
      if (!response?.ok && !answer.end) this.note('It could not be cancelled.');
    };
    return answer;
  }

  /** @param {Answer} a */
  take(a, name, data) {
    if (name === 'accepted') (a.handle = data.handle), (a.cancel.disabled = false);
    else if (name === 'tokens') {
      a.ttft ??= performance.now() - a.started;
      a.out += (data.reasoning ?? '') + data.text;
      a.n += data.num_tokens;
    } else if (name === 'finished') {
      a.end = data.reason;
      a.ttft = data.ttft_ms ?? a.ttft;
      a.itl = data.itl_ms ?? [];
      a.n = data.usage?.output_tokens ?? a.n;
    } else if (name === 'failed') a.end = `${data.code}: ${data.message}`;
    // Reading needs no more than ten updates a second.
    this.timer ||= window.setTimeout(() => this.draw(), 100);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = 0;
    for (const a of this.answers) {
      const [no, row] = a.handle ? this.placeOf(a.handle) : [0, null];
      if (no && no !== a.no) a.badge.replaceChildren(badge((a.no = no)));
      a.row.textContent = row !== null ? `row ${row}` : a.handle && !a.end ? 'waiting' : '';
      if (a.text.textContent !== a.out) a.text.textContent = a.out;
      const itl = [...a.itl].sort((x, y) => x - y)[a.itl.length >> 1];
      a.meta.textContent = [
        count(a.n, 'token'), a.ttft === null ? '' : `first after ${time(a.ttft * 1e3)}`, itl === undefined ? '' : `then ${time(itl * 1e3)} each`, a.end,
      ].filter(Boolean).join(' · ');
      a.cancel.hidden = !!a.end;
    }
  }

  /** Return how many answers are under way. */
  get running() {
    return this.answers.filter((a) => !a.end).length;
  }
}
