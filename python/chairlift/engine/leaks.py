"""Looks for what an engine without requests should not hold."""

import logging

from chairlift.api.errors import EngineDownError
from chairlift.engine.engine import Engine

logger = logging.getLogger(__name__)


def has_leaked(engine: Engine) -> bool:
    """Look for KV blocks and rows without an owner, and log what is found.

    Args:
        engine: Without requests, and without a thread that runs it.
    """
    try:
        engine.check_invariants()
    except EngineDownError:
        logger.critical("the scheduler's state is inconsistent", exc_info=True)
        return True
    load = engine.load()
    num_taken = load.num_blocks - load.num_free_blocks
    if num_taken or load.num_rows_held:
        logger.critical("%d KV blocks and %d rows leaked", num_taken, load.num_rows_held)
        return True
    return False
