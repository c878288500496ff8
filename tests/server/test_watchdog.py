"""The watchdog goes on, whatever one of the things that it looks at does."""

import threading

from chairlift.server.ops.watchdog import Watchdog


async def test_a_watch_that_raises_is_named_once_and_blinds_no_other(caplog):
    watchdog = Watchdog(loop_timeout_s=60)
    num_failed, looked = 0, threading.Semaphore(0)

    def fail():
        nonlocal num_failed
        num_failed += 1
        raise ZeroDivisionError

    def look():
        looked.release()
        return 0.0

    try:
        watchdog.watch("a broken clock has stood still for", fail, 1.0)
        watchdog.watch("a clock has stood still for", look, 1.0)
        for _ in range(3):
            assert looked.acquire(timeout=60)
        assert num_failed >= 2
    finally:
        watchdog.close()
    named = [record for record in caplog.records if "a broken clock" in record.getMessage()]
    assert len(named) == 1
    assert named[0].exc_info[0] is ZeroDivisionError
