"""The engine behind an event loop: every request ends once, whatever happens around it."""

import asyncio
import threading

import pytest
from chairlift.api.errors import EngineState, ModelError, Reason
from chairlift.api.types import Accepted, Failed, Finished, FinishReason, Request, Tokens
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.engine.submitted_request import SubmittedRequest

from tests.engine.drive import Panic, assert_empty, end, greedy, run, token_ids
from tests.engine.tiny_model import prompts

LONG = {"max_tokens": 200, "ignore_eos": True}


class Mailbox:
    """Keeps the events of many requests."""

    def __init__(self):
        self.events = {}
        self._changed = asyncio.Event()

    def keep(self, request, event):
        self.events.setdefault(request, []).append(event)
        self._changed.set()

    async def until(self, condition):
        while not condition(self.events):
            self._changed.clear()
            await self._changed.wait()

    async def ends(self, request):
        await self.until(
            lambda seen: seen.get(request) and isinstance(seen[request][-1], Finished | Failed)
        )
        return end(self.events[request])


class Kept(SubmittedRequest):
    """A request whose events a mailbox keeps."""

    def __init__(self, prepared, mailbox):
        super().__init__(prepared)
        self._mailbox = mailbox

    def deliver(self, event):
        self._mailbox.keep(self, event)


class Gate:
    """Holds the engine thread inside a step until it is opened."""

    def __init__(self, engine):
        self._run = engine.runner.run
        self._open = threading.Event()
        self._reached = threading.Event()
        engine.runner.run = self._held

    def _held(self, inputs):
        self._reached.set()
        self._open.wait()
        return self._run(inputs)

    async def reached(self):
        assert await asyncio.to_thread(self._reached.wait, 60)

    def open(self):
        self._open.set()


@pytest.fixture
async def start(tiny):
    """Start async engines and stop them after the test."""
    started = []

    async def make(**settings):
        engine = AsyncEngine(
            tiny.folder, **{"max_num_seqs": 4, "max_num_batched_tokens": 32, **settings}
        )
        await engine.start()
        started.append(engine)
        return engine

    yield make
    for engine in started:
        await engine.stop()


@pytest.fixture
async def engine(start):
    return await start()


def submit(engine, request, mailbox):
    submitted = Kept(engine.engine.prepare(request), mailbox)
    engine.submit(submitted)
    return submitted


async def test_interleaved_requests_get_the_tokens_of_the_synchronous_engine(engine, tiny):
    wanted = [greedy(p, 25) for p in prompts()]
    alone = Engine(tiny.folder, max_num_seqs=4, max_num_batched_tokens=32)
    expected = [token_ids(events) for events in run(alone, wanted)]

    async def collect(request):
        return [event async for event in engine.generate(request)]

    answers = await asyncio.gather(*map(collect, wanted))
    assert [token_ids(events) for events in answers] == expected
    for events in answers:
        assert isinstance(events[0], Accepted)
        assert isinstance(end(events), Finished)


async def test_each_request_gets_its_own_events(engine):
    mailbox = Mailbox()
    requests = [submit(engine, greedy([i], 10, ignore_eos=True), mailbox) for i in range(1, 5)]
    for request in requests:
        await mailbox.ends(request)
        assert {event.request_id for event in mailbox.events[request]} == {request.engine_id}
        assert request.ended
    assert len({request.handle for request in requests}) == 4


async def test_abort_before_the_request_is_accepted(engine):
    gate, mailbox = Gate(engine.engine), Mailbox()
    running = submit(engine, greedy([1], 3, ignore_eos=True), mailbox)
    await gate.reached()
    request = submit(engine, greedy([2], **LONG), mailbox)
    engine.abort(request)
    engine.abort(request)
    gate.open()
    finished = await mailbox.ends(request)
    assert finished.reason is FinishReason.CANCELLED
    assert [type(event) for event in mailbox.events[request]] == [Accepted, Finished]
    assert (await mailbox.ends(running)).reason is FinishReason.LENGTH
    engine.abort(request)


async def test_abort_while_it_runs(engine):
    mailbox = Mailbox()
    request = submit(engine, greedy([1], **LONG), mailbox)
    await mailbox.until(lambda seen: any(isinstance(e, Tokens) for e in seen.get(request, [])))
    engine.abort(request)
    assert (await mailbox.ends(request)).reason is FinishReason.CANCELLED


async def test_closing_the_iterator_cancels_the_request(engine):
    stream = engine.generate(greedy([1], **LONG))
    async for event in stream:
        if isinstance(event, Tokens):
            break
    await stream.aclose()
    mailbox = Mailbox()
    await mailbox.ends(submit(engine, greedy([2], 2), mailbox))
    await engine.stop()
    assert_empty(engine.engine)


async def test_refusals_arrive_as_failed(start):
    engine = await start(max_queued_requests=1, max_num_seqs=1)
    gate, mailbox = Gate(engine.engine), Mailbox()
    first = submit(engine, greedy([1], 3), mailbox)
    await gate.reached()
    others = [submit(engine, greedy([2], 3), mailbox) for _ in range(4)]
    assert all(request.engine_id is None for request in others)
    gate.open()
    ends = [await mailbox.ends(request) for request in others]
    assert [getattr(e, "reason", None) for e in ends].count(Reason.QUEUE_FULL) == 3
    assert isinstance(await mailbox.ends(first), Finished)


async def test_a_full_queue_refuses_while_a_step_runs(start):
    engine = await start(max_queued_requests=2, max_num_seqs=1)
    gate, mailbox = Gate(engine.engine), Mailbox()
    first = submit(engine, greedy([1], 3), mailbox)
    await gate.reached()
    others = [submit(engine, greedy([2], 3), mailbox) for _ in range(4)]
    ends = [await mailbox.ends(request) for request in others[2:]]
    assert [end.reason for end in ends] == [Reason.QUEUE_FULL] * 2
    gate.open()
    for request in (first, *others[:2]):
        assert isinstance(await mailbox.ends(request), Finished)
    # The queue is empty again.
    assert isinstance(await mailbox.ends(submit(engine, greedy([2], 3), mailbox)), Finished)


async def test_stop_lets_running_requests_finish_and_fails_the_queued(start):
    engine = await start(max_num_seqs=1)
    mailbox = Mailbox()
    running = submit(engine, greedy([1], 30, ignore_eos=True), mailbox)
    await mailbox.until(lambda seen: any(isinstance(e, Tokens) for e in seen.get(running, [])))
    queued = submit(engine, greedy([2], **LONG), mailbox)
    stopping = asyncio.create_task(engine.stop(grace_s=60))
    failed = await mailbox.ends(queued)
    assert engine.state is EngineState.DRAINING
    late = submit(engine, greedy([3], **LONG), mailbox)
    await stopping
    assert (failed.reason, failed.usage.output_tokens) == (Reason.DRAINING, 0)
    assert end(mailbox.events[running]).reason is FinishReason.LENGTH
    assert end(mailbox.events[late]).reason is Reason.DRAINING
    assert_empty(engine.engine)


async def test_stop_without_grace_ends_everybody(engine):
    mailbox = Mailbox()
    requests = [submit(engine, greedy([i], **LONG), mailbox) for i in range(1, 9)]
    await mailbox.until(lambda seen: len(seen) == 8)
    await engine.stop()
    assert {end(mailbox.events[request]).reason for request in requests} == {Reason.DRAINING}
    assert_empty(engine.engine)
    await engine.stop()


async def test_a_dead_engine_ends_every_request(engine):
    gate, mailbox = Gate(engine.engine), Mailbox()
    requests = [submit(engine, greedy([i], **LONG), mailbox) for i in range(1, 9)]
    await gate.reached()

    class Broken:
        def __getattr__(self, name):
            raise Panic

    engine.engine.stepper.core.scheduler = Broken()
    gate.open()
    ends = [await mailbox.ends(request) for request in requests]
    assert {e.reason for e in ends} == {Reason.ENGINE_DOWN}
    assert engine.state is EngineState.DEAD
    late = submit(engine, greedy([3], 3), mailbox)
    assert (await mailbox.ends(late)).reason is Reason.ENGINE_DOWN
    engine.abort(late)
    await engine.restart()
    assert engine.state is EngineState.SERVING
    assert isinstance(await mailbox.ends(submit(engine, greedy([3], 3), mailbox)), Finished)
    await engine.stop()
    assert_empty(engine.engine)


async def test_a_failed_step_reaches_its_requests_alone(engine):
    mailbox = Mailbox()
    forward = engine.engine.runner.model.forward

    def broken(input_ids, *args):
        if 300 in input_ids.tolist():
            raise Panic
        return forward(input_ids, *args)

    engine.engine.runner.model.forward = broken
    failed = await mailbox.ends(submit(engine, greedy([300], 3), mailbox))
    assert failed.reason is Reason.STEP_FAILED
    assert isinstance(await mailbox.ends(submit(engine, greedy([1], 3), mailbox)), Finished)
    assert engine.state is EngineState.SERVING


async def test_a_request_whose_owner_raises_is_aborted_alone(engine):
    class Faulty:
        def keep(self, request, event):
            raise ValueError

    mailbox = Mailbox()
    faulty = submit(engine, greedy([1], **LONG), Faulty())
    good = submit(engine, greedy([2], 20, ignore_eos=True), mailbox)
    assert (await mailbox.ends(good)).reason is FinishReason.LENGTH
    await engine.stop(grace_s=60)
    assert faulty.ended
    assert_empty(engine.engine)


async def test_an_idle_engine_rests(start):
    engine = await start(batching="dynamic", batch_window_s=0.3)
    advance, idle_turns = engine.engine.advance, []

    def counted():
        output = advance()
        if output.record is None:
            idle_turns.append(output)
        return output

    engine.engine.advance = counted
    mailbox = Mailbox()
    await mailbox.ends(submit(engine, greedy([1], 3), mailbox))
    # The window passed with a request in the queue: a thread that spins turns thousands of times.
    assert len(idle_turns) < 20


async def test_flush_lets_a_partial_batch_run(start):
    engine = await start(batching="static", batch_timeout_s=3600)
    mailbox = Mailbox()
    request = submit(engine, greedy([1], 3), mailbox)
    engine.flush()
    assert isinstance(await mailbox.ends(request), Finished)


async def test_steps_can_be_watched(engine):
    records, mailbox = [], Mailbox()
    end_watching = engine.deliveries.watch_steps(records.append)
    request = submit(engine, greedy([7] * 40, 3, ignore_eos=True), mailbox)
    await mailbox.ends(request)
    end_watching()
    await mailbox.ends(submit(engine, greedy([1], 3), mailbox))
    assert [rows for record in records for rows in record.rows] == [
        (0, request.engine_id, 32, False),
        (0, request.engine_id, 8, True),
        (0, request.engine_id, 1, True),
        (0, request.engine_id, 1, True),
    ]
    assert engine.progress.num_steps > len(records)
    assert engine.load().num_running == 0


async def test_requests_before_the_start_are_refused(tiny, make_engine):
    engine, mailbox = AsyncEngine(tiny.folder), Mailbox()
    request = Kept(make_engine().prepare(greedy([1])), mailbox)
    engine.submit(request)
    engine.abort(request)
    assert (await mailbox.ends(request)).reason is Reason.STARTING
    await engine.stop()


async def test_a_model_that_is_missing_is_told(tmp_path):
    engine = AsyncEngine(tmp_path)
    with pytest.raises(ModelError):
        await engine.start()
    assert engine.state is EngineState.DEAD
    await engine.stop()


async def test_random_aborts_leave_nothing(start):
    engine = await start(max_queued_requests=2000)
    mailbox = Mailbox()
    requests = []
    for i in range(150):
        requests.append(submit(engine, greedy(prompts()[i % 8], 20), mailbox))
        if i % 3 == 0:
            engine.abort(requests[(i * 7919) % len(requests)])
        if i % 5 == 0:
            await asyncio.sleep(0)
    for request in requests:
        await mailbox.ends(request)
    assert all(isinstance(end(events), Finished) for events in mailbox.events.values())
    await engine.stop()
    assert_empty(engine.engine)


async def test_long_prompts_are_tokenized_off_the_loop(engine):
    prepared = await engine.prepare(Request("one two " * 4000, truncate_prompt=100))
    assert len(prepared.prompt) == 100
