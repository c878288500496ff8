"""Ranks that meet in shared memory: what all of them gather, and how a group ends."""

import itertools
import mmap
import os
import resource
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from chairlift import _core
from chairlift.api.errors import ModelError
from chairlift.engine.ranks.segment import Layout

PATIENT_S = 60.0


def groups(num_ranks, *, area_bytes=4096, message_numbers=16, timeout_s=PATIENT_S):
    """Return each rank's view of a new segment."""
    layout = Layout(num_ranks, message_numbers, area_bytes)
    descriptor = layout.create()
    return [layout.open(descriptor, rank, 0.0, timeout_s) for rank in range(num_ranks)]


def on_each(ranks, work):
    """Run `work(rank, group)` of every rank on a thread of its own; return the results."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [
            future.result() for future in [pool.submit(work, *each) for each in enumerate(ranks)]
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 300])
def test_all_ranks_have_the_columns_of_all(num_tokens, dtype):
    widths = [7, 0, 12]
    whole = torch.randn(num_tokens, sum(widths)).to(dtype)
    parts = torch.split(whole, widths, dim=1)

    def gather(rank, group):
        # Rows that lie apart, in memory that has other numbers beside them.
        out = torch.zeros(num_tokens, 32, dtype=dtype)
        for _ in range(3):
            group.gather(parts[rank], out[:, 4:23], widths)
        assert not out[:, :4].any()
        assert not out[:, 23:].any()
        return out[:, 4:23]

    for out in on_each(groups(3), gather):
        assert torch.equal(out, whole)


def test_a_recorded_pass_gathers_without_python():
    def run(rank, group):
        x, out = torch.zeros(2, 3), torch.zeros(2, 6)
        with _core.Recording() as recording:
            group.gather(x, out, [3, 3])
        sums = []
        for turn in range(50):
            x.fill_(10 * turn + rank)
            recording.run()
            sums.append(out.sum().item())
        return sums

    expected = [6.0 * (20 * turn + 1) for turn in range(50)]
    assert on_each(groups(2), run) == [expected, expected]


def test_a_message_arrives_at_each_rank():
    messages = [torch.arange(n, dtype=torch.int32) for n in (1, 16, 0, 3)]

    def run(rank, group):
        if rank == 0:
            for message in messages:
                group.send(message)
            return messages
        inbox = torch.zeros(16, dtype=torch.int32)
        return [inbox[: group.receive(inbox)].clone() for _ in messages]

    for received in on_each(groups(3), run):
        assert all(map(torch.equal, received, messages))


def test_a_rank_that_does_not_come_is_named_to_all():
    first, second, third = groups(3, timeout_s=0.05)
    x = torch.zeros(1, 1)
    with pytest.raises(_core.RankError, match=r"rank [12] did not arrive in time"):
        first.gather(x, torch.zeros(1, 3), [1, 1, 1])
    for late in (second, third):
        with pytest.raises(_core.RankError, match=r"rank [12] did not arrive in time"):
            late.gather(x, torch.zeros(1, 3), [1, 1, 1])
    assert first.fault == third.fault


def test_a_group_that_is_closed_ends_its_messages_in_order():
    def run(rank, group):
        if rank == 0:
            group.close()
            return None
        return group.receive(torch.zeros(1, dtype=torch.int32))

    ranks = groups(2)
    assert on_each(ranks, run) == [None, None]
    assert ranks[0].fault == "the group of ranks is closed"


def test_a_rank_that_failed_is_the_fault_that_stays():
    first, second = groups(2)
    assert first.fault is None
    second.fail(1, has_ended=True)
    first.fail(0)
    assert first.fault == "the process of rank 1 ended"
    with pytest.raises(_core.RankError, match="the process of rank 1 ended"):
        second.receive(torch.zeros(1, dtype=torch.int32))


def test_numbers_that_changed_on_the_way_end_the_group():
    layout = Layout(2, 16, 4096)
    descriptor = layout.create()
    ranks = [layout.open(descriptor, rank, 0.0, PATIENT_S) for rank in range(2)]
    memory = mmap.mmap(descriptor, sum(layout.parts()))
    words, first, *_ = layout.parts()

    def run(rank, group):
        if rank == 0:
            # It may have returned when rank 1 reads, or not.
            with suppress(_core.RankError):
                group.send(torch.tensor([5], dtype=torch.int32))
            return None
        with pytest.raises(_core.RankError, match="expected the numbers that were sent"):
            group.receive(torch.zeros(16, dtype=torch.int32))
        return None

    # The first round has the parity 1; rank 1 comes when the number is another.
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(run, 0, ranks[0])
        at = words + first + 4 * _core.RANK_MESSAGE_HEADER
        while memory[at] != 5:
            assert not sent.done()
        memory[at] = 6
        run(1, ranks[1])
        sent.result()
    assert "another message" in ranks[0].fault


@pytest.mark.parametrize(
    ("x", "out", "widths"),
    [
        ((2, 3), (2, 6), [3, 3, 0]),
        ((2, 3), (2, 6), [2, 4]),
        ((2, 3), (2, 7), [3, 3]),
        ((2, 3), (1, 6), [3, 3]),
    ],
)
def test_widths_that_do_not_fit_are_named(x, out, widths):
    group, _ = groups(2)
    with pytest.raises(ValueError, match="widths"):
        group.gather(torch.zeros(x), torch.zeros(out), widths)


def test_a_row_that_is_wider_than_an_area_is_refused():
    group, _ = groups(2, area_bytes=4096)
    wide = torch.zeros(1, 2000)
    with pytest.raises(ValueError, match="areas: expected at least 8000 bytes, got 4096"):
        group.gather(wide, torch.zeros(1, 4000), [2000, 2000])


def gather_forever(group, before_gather=lambda: None):
    """Gather until the group ends, which is an error."""
    x, out = torch.zeros(1, 8), torch.zeros(1, 16)
    while True:
        before_gather()
        group.gather(x, out, [8, 8])


def forked(group):
    """Return a process that gathers as one of the ranks, and ends with the group."""
    with warnings.catch_warnings():
        # Python warns of forks of a process with threads; this one calls nothing that they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        process_id = os.fork()
    if process_id == 0:
        try:
            gather_forever(group)
        finally:
            os._exit(0)
    return process_id


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("spin_s", [0.0, 50e-6])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("rounds", [3, pytest.param(250, marks=pytest.mark.slow)])
def test_a_rank_that_is_lost_at_any_barrier_ends_the_gathers_of_all(number, spin_s, rounds):
    for lost_at in range(rounds):
        layout = Layout(2, 16, 4096)
        descriptor = layout.create()
        first, second = (layout.open(descriptor, rank, spin_s, 0.5) for rank in range(2))
        process_id = forked(second)
        reached, gathered = threading.Event(), itertools.count()

        def note(gathered=gathered, lost_at=lost_at, reached=reached):
            if next(gathered) == lost_at:
                reached.set()

        def lose(group=first, process_id=process_id, reached=reached):
            reached.wait(PATIENT_S)
            os.kill(process_id, number)
            if number == signal.SIGKILL:
                # As the thread does that watches the processes of ranks.
                os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
                group.fail(1, has_ended=True)

        with ThreadPoolExecutor(1) as pool:
            losing = pool.submit(lose)
            with pytest.raises(_core.RankError, match="rank 1"):
                gather_forever(first, note)
            losing.result()
        # A process that goes on later finds that the group has ended, and ends.
        os.kill(process_id, signal.SIGCONT)
        assert os.waitpid(process_id, 0)[1] in (0, signal.SIGKILL)
        os.close(descriptor)


def test_memory_that_is_not_there_is_an_error_at_the_start():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(ModelError, match=r"tensor_parallel: no \d+ bytes of shared memory"):
            Layout(2, 16).create()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
