"""Keeps an engine serving: its health, and its restart in place, a bounded number of times."""

import logging
from typing import TYPE_CHECKING

from chairlift.api.errors import EngineDownError, EngineState, ModelError
from chairlift.server.app.loading import probe
from chairlift.server.calls.context import ServerContext
from chairlift.server.ops.health import Health
from chairlift.server.ops.restart_budget import RestartBudget

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_log = logging.getLogger(__name__)


async def restart(engine: "AsyncEngine") -> bool:
    """Restart a dead engine and let it answer a request; return whether it did."""
    _log.error("the engine is lost; it restarts with the loaded weights")
    try:
        await engine.restart()
        await probe(engine)
    except (EngineDownError, ModelError) as error:
        engine.fail_all()
        _log.error("the restart failed: %s", error)
        return False
    _log.warning("the engine serves again")
    return True


async def keep_serving(engine: "AsyncEngine", server: ServerContext, health: Health) -> None:
    """Update the health status, and restart a lost engine while its budget lasts.

    Args:
        engine: It serves.
        server: Its gate is closed while the engine restarts, and for good when it is dead.
        health: Follows the engine.
    """
    budget, gate = RestartBudget(), server.gate
    while not gate.draining.is_set():
        await health.follow(engine, gate.draining)
        if engine.state is not EngineState.DEAD or gate.draining.is_set():
            return
        gate.close()
        if not budget.take():
            _log.critical("the engine is dead: no request is accepted any more")
            server.die()
        elif await restart(engine):
            server.metrics.restarted()
            gate.reopen()
