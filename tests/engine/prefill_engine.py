"""A prefill server without a network: an engine that computes prompts as soon as it is asked."""

import dataclasses

from chairlift.api.types import PrefixCache, Request, Sampling, Stopping
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.engine.roles import export_blocks, import_blocks

from tests.engine.drive import assert_empty, drain, end, greedy, run


class PrefillEngine:
    """Computes prompts on an engine as soon as it is asked: a `Fetcher` without a network."""

    def __init__(self, engine):
        self.engine = engine
        self.exports, self.layout = export_blocks(engine)
        self.asked = []
        self.deliver = lambda wanted, blocks: [wanted.put(b.number, b.data) for b in blocks]

    def fetch(self, wanted):
        self.asked.append(wanted)
        export = BlockExport(wanted.first, self.exports.held, lambda: None)
        request = Request(
            wanted.token_ids,
            Sampling(temperature=0.0),
            Stopping(max_tokens=1, ignore_eos=True),
            prefix_cache=PrefixCache(salt=wanted.scope),
        )
        prepared = dataclasses.replace(self.engine.prepare(request), export=export)
        self.engine.add(prepared)
        drain(self.engine)
        blocks = export.take(1 << 40)
        export.close()
        self.deliver(wanted, blocks)
        wanted.end()
        return True

    def close(self):
        pass


def connect(make_engine, folder, *, is_strict=True, **settings):
    """Build a decode engine before a prefill engine; return it, its imports and the latter."""
    source = PrefillEngine(make_engine(folder, **settings))
    engine = make_engine(folder, **settings)
    stats = import_blocks(engine, lambda _layout, _size: source, is_strict=is_strict)
    return engine, stats, source


def answer(engine, prompt, **fields):
    """Return the events of one request."""
    (events,) = run(engine, [dataclasses.replace(greedy(prompt, 8), **fields)])
    return events


def assert_transferred(engine, stats, source, events, num_tokens):
    """Check that a whole prompt came from another engine, and that nothing is left."""
    usage = end(events).usage
    assert usage.transferred_tokens == usage.cached_tokens == num_tokens
    assert stats.stats().num_whole == 1
    assert_empty(engine)
    assert_empty(source.engine)
    assert source.exports.held.num_bytes == 0


class NoServer:
    """Has no server to ask."""

    def fetch(self, wanted):
        return False

    def close(self):
        pass
