"""Memory for KV blocks between processes: what a prefill server opens, and what it refuses."""

import fcntl
import mmap
import os
import socket
import subprocess
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from chairlift.server.transfer import shared_memory
from chairlift.server.transfer.shared_memory import PeerSegment, Segment
from chairlift.server.transfer.sharing import MAX_OPEN, Borrowing
from chairlift.v1 import transfer_pb2 as pb

from tests.forked import Python

SIZE = 1000
"""Of a block: no page ends with one."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
NONCE = bytes(range(16))
FILE_BYTES = shared_memory.SLOTS_START + 4 * SIZE
OTHER_USER = 65_534
IS_ROOT = os.geteuid() == 0
CHANGED = {
    "another nonce": {"nonce": bytes(16)},
    "a short nonce": {"nonce": bytes(8)},
    "no nonce": {"nonce": b""},
    "no size": {"size": 0},
    "a size without a slot": {"size": shared_memory.SLOTS_START},
    "a size between slots": {"size": FILE_BYTES - 1},
    "a larger size": {"size": FILE_BYTES + SIZE},
    "a smaller size": {"size": FILE_BYTES - SIZE},
    "too many slots": {"size": shared_memory.SLOTS_START + 129 * SIZE},
    "the largest size": {"size": 2**64 - 1},
    "no process": {"pid": 2**22 + 1},
    "process 0": {"pid": 0},
    "the largest process": {"pid": 2**32 - 1},
    "no file": {"fd": 2**32 - 1},
}


def block(number):
    return bytes([number % 251]) * SIZE


def memfd(name=shared_memory.NAME, seals=SEALS, content=NONCE, size=FILE_BYTES):
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    os.pwrite(file, content, 0)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def named(file, **fields):
    values = {"pid": os.getpid(), "fd": file, "size": FILE_BYTES, "nonce": NONCE}
    return pb.SharedMemory(**{"host": shared_memory.host_id(), **values, **fields})


def count_open(file):
    """Return how often this process has a file open, and how many segments it has."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        # The listing itself is closed by then.
        with suppress(OSError):
            links.append(str(path.readlink()))
    own = Path(f"/proc/self/fd/{file}")
    count = links.count(str(own.readlink())) if own.is_symlink() else 0
    return count, sum(shared_memory.NAME in link for link in links)


@contextmanager
def nothing_left_open(file=0):
    before = count_open(file)
    yield
    assert count_open(file) == before


def assert_refused(memory):
    """Check that a server of this process does not take it."""
    with nothing_left_open(memory.fd):
        borrowing = Borrowing()
        assert borrowing.open(pb.PrefillRequest(shared_memory=memory), SIZE) is None
        assert borrowing.num_open == 0


def test_blocks_go_around_the_slots_as_often_as_it_takes():
    with (
        nothing_left_open(),
        closing(Segment(SIZE, 5)) as segment,
        closing(PeerSegment.open(segment.named, SIZE)) as peer,
    ):
        assert (peer.num_slots, peer.num_free) == (5, 5)
        for number in range(0, 900, 3):
            peer.write([block(number), block(number + 1), block(number + 2)])
            assert peer.num_free == 2
            assert [segment.take() for _ in range(3)] == list(map(block, range(number, number + 3)))
            assert peer.num_free == 5


def test_slots_are_as_many_as_blocks_up_to_two_limits():
    for size, count, expected in ((SIZE, 1, 1), (SIZE, 9999, 128), (2**20, 99, 8), (2**23, 9, 1)):
        with closing(Segment(size, count)) as segment:
            assert segment.named.size == shared_memory.SLOTS_START + expected * size
            with closing(PeerSegment.open(segment.named, size)) as peer:
                assert peer.num_slots == expected
    with pytest.raises(OSError, match="no slot has room"):
        Segment(2**23 + 1, 1)


def test_what_the_owner_does_is_no_signal_to_the_writer():
    """It can change what is in it, and punch holes, but the size is sealed."""
    with (
        closing(Segment(SIZE, 4)) as segment,
        closing(PeerSegment.open(segment.named, SIZE)) as peer,
    ):
        for size in (0, 10**6):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.named.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment.named.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        for freed in range(256):
            os.pwrite(segment.named.fd, bytes([freed]), 16)
            assert 0 <= peer.num_free <= 4
        # MADV_REMOVE punches a hole into the file.
        memory = mmap.mmap(segment.named.fd, segment.named.size)
        memory.madvise(mmap.MADV_REMOVE)
        peer.write([block(7)])
        assert segment.take() == block(7)
        assert os.fstat(segment.named.fd).st_size == segment.named.size


@pytest.mark.parametrize("fields", CHANGED.values(), ids=CHANGED)
def test_a_name_that_is_not_exact_is_refused(fields):
    file = memfd()
    try:
        with closing(PeerSegment.open(named(file), SIZE)):
            assert_refused(named(file, **fields))
        assert os.pread(file, FILE_BYTES, 0) == NONCE.ljust(FILE_BYTES, b"\0")
    finally:
        os.close(file)


@pytest.mark.parametrize("host", ["", "another", shared_memory.host_id() + "1"])
def test_memory_of_another_host_is_not_looked_for(host):
    with closing(Segment(SIZE, 4)) as segment:
        segment.named.host = host
        assert_refused(segment.named)


@pytest.mark.parametrize(
    "seals",
    [0, SEALS & ~fcntl.F_SEAL_SHRINK, SEALS & ~fcntl.F_SEAL_GROW, SEALS & ~fcntl.F_SEAL_SEAL],
)
def test_memory_without_a_seal_is_refused(seals):
    file = memfd(seals=seals)
    assert_refused(named(file))
    os.close(file)


def test_memory_of_another_program_is_refused_though_its_bytes_are_known():
    """A window of a desktop is such memory, and begins with black."""
    for name in ("wayland-shm", shared_memory.NAME + "2", ""):
        file = memfd(name, content=bytes(16))
        assert_refused(named(file, nonce=bytes(16)))
        os.close(file)


def test_a_file_is_refused_and_not_written_to(tmp_path):
    content = NONCE.ljust(FILE_BYTES, b"x")
    for folder in (tmp_path, Path("/dev/shm")):
        path = folder / f"memfd:{shared_memory.NAME} (deleted)"
        with path.open("w+b") as file:
            file.write(content)
            file.flush()
            try:
                assert_refused(named(file.fileno()))
                file.seek(0)
                assert file.read() == content
            finally:
                path.unlink()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    ends = socket.socketpair()
    files = [
        os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK),
        os.open("/dev/null", os.O_RDWR),
        os.open("/proc/self/mem", os.O_RDWR),
        os.open(tmp_path, os.O_RDONLY),
        *os.pipe(),
        os.eventfd(0),
    ]
    for file in (*files, ends[0].fileno()):
        assert_refused(named(file))
    for file in files:
        os.close(file)
    for end in ends:
        end.close()


def test_memory_that_cannot_be_written_to_is_an_error_of_the_write():
    file = memfd(seals=SEALS | fcntl.F_SEAL_WRITE)
    with closing(PeerSegment.open(named(file), SIZE)) as peer, pytest.raises(PermissionError):
        peer.write([block(1)])
    os.close(file)


def test_memory_of_a_process_that_ended_is_refused():
    program = (
        "import sys\n"
        "from chairlift.server.transfer.shared_memory import Segment\n"
        f"print(Segment({SIZE}, 4).named.SerializeToString().hex(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = Python("-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    memory = pb.SharedMemory.FromString(bytes.fromhex(process.stdout.readline()))
    with closing(PeerSegment.open(memory, SIZE)) as peer:
        process.kill()
        process.communicate()
        assert_refused(memory)
        peer.write([block(1)])


@pytest.mark.skipif(not IS_ROOT, reason="another user is needed")
def test_memory_of_another_user_is_refused_by_either():
    """This user may open it, and that one may not open this one's."""
    file = memfd()
    os.fchown(file, OTHER_USER, OTHER_USER)
    assert_refused(named(file))
    os.close(file)
    program = (
        "import os, sys\n"
        "from chairlift.server.transfer.shared_memory import PeerSegment, pb\n"
        f"os.setuid({OTHER_USER})\n"
        "try:\n"
        f"    PeerSegment.open(pb.SharedMemory.FromString(bytes.fromhex(sys.argv[1])), {SIZE})\n"
        "except PermissionError:\n"
        "    print('not permitted')\n"
    )
    with closing(Segment(SIZE, 4)) as segment:
        memory = segment.named.SerializeToString().hex()
        process = Python("-c", program, memory, stdout=subprocess.PIPE, text=True)
        assert process.communicate()[0] == "not permitted\n"


def test_so_many_are_open_at_once_and_no_more():
    borrowing = Borrowing()
    with closing(Segment(SIZE, 4)) as segment:
        request = pb.PrefillRequest(shared_memory=segment.named)
        opened = [borrowing.open(request, SIZE) for _ in range(MAX_OPEN + 3)]
        assert opened[MAX_OPEN:] == [None] * 3
        for peer in opened:
            borrowing.close(peer)
        assert borrowing.num_open == 0
        with nothing_left_open():
            borrowing.close(borrowing.open(request, SIZE))


def test_a_write_that_is_under_way_goes_to_no_file_that_gets_the_number(tmp_path):
    size = 2**16
    with closing(Segment(size, 128)) as segment:
        for number in range(20):
            with nothing_left_open():
                peer = PeerSegment.open(segment.named, size)
                writing = threading.Thread(target=write_all, args=(peer, [bytes(size)] * 100))
                writing.start()
                peer.close()
                with (tmp_path / str(number)).open("w+b") as file:
                    writing.join()
                    assert os.fstat(file.fileno()).st_size == 0
            with pytest.raises(OSError, match="closed"):
                peer.write([b""])


def write_all(peer, blocks):
    # It may be closed before.
    with suppress(OSError):
        peer.write(blocks)
