"""Faults that are put into a running server from outside, by name."""

import math
import threading

POISON = 377
"""A prompt that holds this token meets the fault."""


class Panic(BaseException):
    """Like a panic in Rust, which is no Exception."""


def install(name, server):
    """Puts the fault into a server that serves."""
    FAULTS[name](server.gate.engine().engine)


def forward_raises(error, *, times=None, poison=True):
    """The forward pass raises, for every step that holds the token or for all, so many times."""

    def install(engine):
        model = engine.runner.model
        forward, left = model.forward, [times]

        def broken(input_ids, *args):
            if not poison or POISON in input_ids.tolist():
                if left[0] is None:
                    raise error
                if left[0] > 0:
                    left[0] -= 1
                    raise error
            return forward(input_ids, *args)

        model.forward = broken

    return install


def spoils(value):
    """The logits of the request with seed 7 hold a value that is not finite."""

    def install(engine):
        sampler = engine.runner.sampler
        sample = sampler.sample

        def spoiled(logits, slots, **places):
            logits[sampler.seed.index_select(0, slots) == 7, 0] = value
            return sample(logits, slots, **places)

        sampler.sample = spoiled

    return install


def hang(engine):
    """The engine thread stays in the step that holds the token."""
    forward = engine.runner.model.forward

    def hanging(input_ids, *args):
        if POISON in input_ids.tolist():
            threading.Event().wait()
        return forward(input_ids, *args)

    engine.runner.model.forward = hanging


def thread_ends(engine):
    """The engine thread dies once, whatever it does."""
    advance, left = engine.advance, [1]

    def broken():
        if left[0] and engine.load().num_running:
            left[0] -= 1
            raise Panic
        return advance()

    engine.advance = broken


def thread_ends_always(engine):
    """The engine thread dies whenever it has work, and after each restart again."""
    advance = engine.advance

    def broken():
        if engine.load().num_running or engine.load().num_waiting:
            raise Panic
        return advance()

    engine.advance = broken


def tokenizer_panics(engine):
    """Every text makes the tokenizer panic."""

    def panic(*_args, **_kwargs):
        raise Panic

    engine.tokenizer.encode = panic


FAULTS = {
    "exception once": forward_raises(ValueError("secret"), times=1),
    "exception": forward_raises(ValueError("secret")),
    "panic": forward_raises(Panic("secret")),
    "out of memory": forward_raises(MemoryError("secret")),
    "model fails for all": forward_raises(ValueError("secret"), poison=False),
    "nan": spoils(math.nan),
    "inf": spoils(math.inf),
    "hang": hang,
    "thread ends": thread_ends,
    "thread ends always": thread_ends_always,
    "tokenizer panics": tokenizer_panics,
    "no files": lambda _engine: None,
}
