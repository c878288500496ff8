/** The feed: server-sent events over `fetch`, which can send a token as `EventSource` cannot. */

import { keep } from './theme.js';

const KEY = 'chairlift.token', SILENCE_MS = 15000, MAX_EVENT = 8 << 20;
let token = keep(KEY, null, 'sessionStorage');

export function setToken(text, isKept) {
  token = text;
  keep(KEY, isKept ? text : '', 'sessionStorage');
}
export const hasToken = () => !!token;
/** @returns {HeadersInit} */
export const auth = () => (token ? { authorization: `Bearer ${token}` } : {});

/** Return what the server says of a refused request. */
export async function refusal(response) {
  const text = (await response.text().catch(() => '')).slice(0, 2000);
  try {
    const body = JSON.parse(text);
    return String(body.error?.message ?? text);
  } catch {
    return text || `HTTP ${response.status}`;
  }
}

/** Yield the events of a response; a comment has no name. @returns {AsyncGenerator<[string, any]>} */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (text + value).split('\n\n');
    text = blocks.pop() ?? '';
    if (text.length > MAX_EVENT) throw new Error('an event is too long');
    for (const block of blocks) {
      let name = '', data = '';
      for (const line of block.split('\n')) {
        if (line.startsWith('event: ')) name = line.slice(7);
        else if (line.startsWith('data: ')) data += line.slice(6);
      }
      yield [name, name && data ? JSON.parse(data) : null];
    }
  }
}

/** Follows the server: connects again after 0.5 to 8 s, and rests while the page is hidden. */
export class Feed {
  query = { fps: 10 };
  turn = 0;
  abort = new AbortController();

  /** `onEvent(name, data)` takes events, `onState(state, text)` one of open, lost, loading, refused, token. */
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.close() : this.open()));
  }

  close() {
    this.turn++;
    this.abort.abort();
  }

  open() {
    this.close();
    if (!document.hidden) this.run(this.turn);
  }

  async run(turn) {
    for (let delay = 500; turn === this.turn; delay = Math.min(8000, 2 * delay)) {
      const abort = (this.abort = new AbortController());
      let watchdog = setTimeout(() => abort.abort(), SILENCE_MS), text = '', state = 'lost';
      try {
        const query = new URLSearchParams(Object.entries(this.query).map(([k, v]) => [k, String(v)]));
        const response = await fetch(`/page/feed?${query}`, { headers: auth(), signal: abort.signal, cache: 'no-store' });
        if (response.ok) {
          for await (const [name, data] of events(response)) {
            if (turn !== this.turn) return;
            clearTimeout(watchdog);
            watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
            if (name === 'bye' && data.reason === 'unauthenticated') state = 'token';
            else if (name) this.onEvent(name, data);
            if (name === 'hello') (delay = 250), this.onState('open', '');
          }
        } else {
          const { status } = response;
          state = status === 401 ? 'token' : status === 503 ? 'loading' : status < 500 && status !== 429 ? 'refused' : 'lost';
          text = await refusal(response);
        }
      } catch (error) {
        // A fault of the page itself is no lost connection.
        if (!(error instanceof TypeError || error instanceof DOMException)) console.error(error);
      } finally {
        clearTimeout(watchdog);
      }
      if (turn !== this.turn) return;
      this.onState(state, text);
      if (state === 'token') return;
      await new Promise((go) => setTimeout(go, delay * (0.75 + Math.random() / 2)));
    }
  }
}
