"""Whether an engine whose requests have all ended has given everything back."""

import logging

from chairlift.engine.engine import Engine
from chairlift.errors import EngineDownError

logger = logging.getLogger(__name__)


def has_leaked(engine: Engine) -> bool:
    """Looks for KV blocks and rows that nobody owns; says in the log what it finds.

    Args:
        engine: Without requests, and without a thread that runs it.
    """
    try:
        engine.check_invariants()
    except EngineDownError:
        logger.critical("the scheduler's books are wrong", exc_info=True)
        return True
    load = engine.load()
    num_taken = load.num_blocks - load.num_free_blocks
    if num_taken or load.num_rows_held:
        logger.critical("%d KV blocks and %d rows leaked", num_taken, load.num_rows_held)
        return True
    return False
