"""Steps engines, collects what they say, and looks into or bends what the sampler sees."""

import random
from collections import defaultdict

import torch
from chairlift.api.config import Drafts
from chairlift.api.types import (
    Failed,
    Finished,
    FinishReason,
    Output,
    Request,
    Sampling,
    Stopping,
    Tokens,
)


class Panic(BaseException):
    """Like a panic in Rust, which is no Exception."""


class Clock:
    """Nanoseconds that pass only when a test says so."""

    def __init__(self):
        self.now = 1_000_000_000

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += round(seconds * 1e9)


def greedy(prompt, max_tokens=16, *, seed=0, output=None, **stopping):
    """A request whose seed, unused by a greedy draw, names it in what `watch_sampler` records."""
    return Request(
        prompt,
        Sampling(temperature=0, seed=seed),
        Stopping(max_tokens=max_tokens, **stopping),
        output or Output(),
    )


def drain(engine, *, limit=10_000):
    """Step until all requests have ended; return their events, in order, by request id."""
    events = defaultdict(list)
    for _ in range(limit):
        if not engine.has_work:
            break
        for event in engine.step():
            events[event.request_id].append(event)
    assert not engine.has_work, "the requests do not end"
    return events


def run(engine, requests):
    """Add all requests, then drain; return a list of events per request."""
    ids = [engine.add(request).request_id for request in requests]
    engine.flush()
    events = drain(engine, limit=10_000 + 100 * len(ids))
    return [events[request_id] for request_id in ids]


def token_ids(events):
    return [token for event in events if isinstance(event, Tokens) for token in event.token_ids]


def text(events):
    return "".join(event.text for event in events if isinstance(event, Tokens))


def end(events):
    """The last event; there is one end and nothing after it."""
    assert [isinstance(event, Finished | Failed) for event in events].count(True) == 1
    assert isinstance(events[-1], Finished | Failed)
    return events[-1]


def cancel_at_random(engine, clock, prompts, answers, max_tokens):
    """Add and cancel requests between steps: whole answers are those, cut ones begin them."""
    draw = random.Random(1)
    live, ended, seen = {}, 0, {}
    for _ in range(500):
        clock.advance(0.02)
        if draw.random() < 0.3 and len(live) < 30:
            which = draw.randrange(len(prompts))
            live[engine.add(greedy(prompts[which], max_tokens)).request_id] = which
        if live and draw.random() < 0.15:
            engine.abort(draw.choice(list(live)))
        for event in engine.step():
            if isinstance(event, Tokens):
                seen.setdefault(event.request_id, []).extend(event.token_ids)
            else:
                assert isinstance(event, Finished)
                which = live.pop(event.request_id)
                got = seen.pop(event.request_id, [])
                assert got == answers[which][: len(got)]
                if event.reason is not FinishReason.CANCELLED:
                    assert got == answers[which]
                ended += 1
        engine.check_invariants()
    for request_id in live:
        engine.abort(request_id)
    drain(engine)
    assert ended > 40
    assert_empty(engine)


def take_time(engine, clock, seconds_per_token=0.001):
    """Let a step take so long for each of its tokens, as the scheduler sees it."""
    run_step = engine.runner.run

    def timed(inputs):
        clock.advance(len(inputs.input_ids) * seconds_per_token)
        return run_step(inputs)

    engine.runner.run = timed


def swap_plan(*, copies=(), swap_in=(), swap_out=()):
    """A plan that computes nothing and moves blocks: pairs of from and to."""
    pairs = [number for pair in (*copies, *swap_in, *swap_out) for number in pair]
    lengths = [0] * 6 + [len(copies), len(swap_in), len(swap_out)] + [0] * 7
    return torch.tensor(lengths + pairs, dtype=torch.int32)


def assert_empty(engine):
    """Nothing runs, waits or holds a block."""
    engine.check_invariants()
    load = engine.load()
    assert (load.num_waiting, load.num_running, load.num_kv_tokens) == (0, 0, 0)
    assert load.num_free_blocks == load.num_blocks
    assert load.num_free_host_blocks == load.num_host_blocks


def watch_sampler(engine):
    """Record each row of logits that is sampled from, by (seed of the request, position).

    Behind a wrong draft a token is drawn that does not count: the last draw of a position does.
    """
    seen = {}
    sampler = engine.runner.sampler
    sample = sampler.sample

    def record(logits, slots, position, **rest):
        seeds = sampler.seed.index_select(0, slots).tolist()
        for row, key in enumerate(zip(seeds, position.tolist(), strict=True)):
            has_drafts = engine.config.drafts is not Drafts.OFF
            assert has_drafts or key not in seen, "a token is drawn once"
            seen[key] = logits[row].clone()
        return sample(logits, slots, position=position, **rest)

    sampler.sample = record
    return seen


def bend_logits(engine, bend):
    """Let `bend(logits, seeds)` change the logits in place before each draw."""
    sampler = engine.runner.sampler
    sample = sampler.sample

    def bent(logits, slots, **rest):
        bend(logits, sampler.seed.index_select(0, slots).tolist())
        return sample(logits, slots, **rest)

    sampler.sample = bent


def script(engine, answers):
    """Make the model write: `answers` gives the next tokens of each seed, then it is free again."""
    left = {seed: iter(tokens) for seed, tokens in answers.items()}
    done = iter(())

    def write(logits, seeds):
        for row, seed in enumerate(seeds):
            token = next(left.get(seed, done), None)
            if token is not None:
                logits[row, token] = 1e6

    bend_logits(engine, write)
