"""Which texts get the threads of the text queue, how many may wait for one and how long."""

import asyncio
import threading
from contextlib import suppress

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Request
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.prepare import text_queue
from chairlift.engine.prepare.text_queue import TextQueue, caller

LONG_S = 300.0


class Work:
    """Pieces of work that run until they are released; notes which run."""

    def __init__(self, queue):
        self.queue = queue
        self.running = []
        self.gates = {}
        self.tasks = []
        self.changed = threading.Semaphore(0)

    def begin(self, name, tenant="ann", size=0, within_s=None):
        gate = self.gates[name] = threading.Event()

        def work():
            self.running.append(name)
            self.changed.release()
            assert gate.wait(LONG_S)
            return name

        run = self.queue.run(work, tenant=tenant, size=size, within_s=within_s)
        task = asyncio.create_task(run, name=name)
        self.tasks.append(task)
        return task

    async def started(self, num=1):
        """Until so many more pieces have begun."""
        for _ in range(num):
            assert await asyncio.to_thread(self.changed.acquire, timeout=LONG_S)

    async def end(self):
        for gate in self.gates.values():
            gate.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def work():
    work = Work(TextQueue(LONG_S, num_threads=2))
    yield work
    await work.end()
    work.queue.close()


async def turns(num=20):
    """Let the event loop do all that it can do."""
    for _ in range(num):
        await asyncio.sleep(0)


async def reason_of(awaitable):
    with pytest.raises(RequestError) as refused:
        await awaitable
    return refused.value.reason


async def test_a_tenant_has_half_of_the_threads(work):
    work.begin("a1")
    work.begin("a2")
    await work.started()
    work.begin("b1", "bob")
    await work.started()
    assert work.running == ["a1", "b1"]


async def test_tenants_take_turns_however_much_one_of_them_has_waiting(work):
    for i in range(5):
        work.begin(f"a{i}")
    await work.started()
    for tenant in ("bob", "cid", "dan"):
        work.begin(tenant, tenant)
    await work.started()
    assert work.running == ["a0", "bob"]
    # Every piece that ends gives its thread to the tenant that had none for longest.
    for name in ("bob", "cid", "dan", "a0"):
        work.gates[name].set()
        await work.started() if name != "dan" else await turns()
    assert work.running == ["a0", "bob", "cid", "dan", "a1"]


async def test_what_work_raises_is_raised(work):
    def fail():
        raise LookupError

    with pytest.raises(LookupError):
        await work.queue.run(fail, tenant="ann", size=0)
    assert await work.queue.run(lambda: 3, tenant="ann", size=0) == 3


async def test_the_bytes_that_wait_are_bounded_for_a_tenant_and_for_all(work, monkeypatch):
    monkeypatch.setattr(text_queue, "MAX_WAITING_BYTES", 10_000)
    monkeypatch.setattr(text_queue, "MAX_TENANT_WAITING_BYTES", 6_000)
    work.begin("a")
    work.begin("b", "bob")
    await work.started(2)
    work.begin("a2", size=4_000)
    await turns()
    assert await reason_of(work.begin("a3", size=1_000)) is Reason.QUOTA_EXCEEDED
    work.begin("b2", "bob", size=2_000)
    await turns()
    assert await reason_of(work.begin("b3", "bob", size=1_000)) is Reason.QUEUE_FULL
    await work.end()
    # A text that is longer than all that may wait is taken where nothing waits.
    assert await work.queue.run(lambda: 3, tenant="ann", size=100_000_000) == 3


async def test_a_text_waits_no_longer_than_its_limit(work):
    work.begin("a")
    await work.started()
    assert await reason_of(work.begin("a2", within_s=1e-6)) is Reason.QUEUE_TIMEOUT
    assert work.running == ["a"]


async def test_work_that_was_cancelled_while_it_waited_is_not_done(work):
    work.begin("a")
    await work.started()
    waiting = work.begin("a2")
    await turns()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    work.begin("a3")
    work.gates["a"].set()
    await work.started()
    assert work.running == ["a", "a3"]


async def test_a_thread_is_taken_until_its_work_ends_though_its_caller_is_gone(work):
    running = work.begin("a")
    await work.started()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    work.begin("a2")
    await turns()
    assert work.running == ["a"]
    work.gates["a"].set()
    await work.started()
    assert work.running == ["a", "a2"]


async def test_what_waits_is_refused_when_the_queue_closes(work):
    work.begin("a")
    await work.started()
    waiting = work.begin("a2")
    await turns()
    work.queue.close()
    assert await reason_of(waiting) is Reason.DRAINING
    assert await reason_of(work.begin("b", "bob")) is Reason.DRAINING


async def test_connections_take_turns_where_there_are_no_tenants(work):
    one, other = caller("", "one"), caller("", "other")
    for i in range(5):
        work.begin(f"a{i}", one)
    work.begin("b", other)
    await work.started(2)
    assert work.running == ["a0", "b"]
    # The connections of a tenant are one.
    assert caller("ann", "one") == caller("ann", "other") != one


async def test_the_engine_tells_the_connections_of_an_open_server_apart(make_engine):
    engine = AsyncEngine.of(make_engine())
    await engine.start()
    may_end = threading.Event()
    busy = [
        asyncio.create_task(engine.texts.run(may_end.wait, tenant=caller("", "one"), size=0))
        for _ in range(8)
    ]
    await turns()
    chat = Request([{"role": "user", "content": "up"}])
    waits = asyncio.create_task(engine.prepare(chat, "one"))
    assert (await asyncio.wait_for(engine.prepare(chat, "other"), LONG_S)).prompt
    assert not waits.done()
    may_end.set()
    await asyncio.gather(waits, *busy)
    await engine.stop()
