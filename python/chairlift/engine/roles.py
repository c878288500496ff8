"""Gives an idle engine a role: it computes prompts for others, or lets others compute its own."""

from collections.abc import Callable

from chairlift.engine.engine import Engine
from chairlift.engine.store_first import StoreFirst
from chairlift.engine.transfer.block_import import Fetcher
from chairlift.engine.transfer.exchange import BlockExchange
from chairlift.engine.transfer.exports import BlockExports
from chairlift.engine.transfer.imports import BlockImports
from chairlift.engine.transfer.layout import BlockContents, block_bytes, check_model
from chairlift.engine.transfer.states import StatePieces


def export_blocks(engine: Engine) -> tuple[BlockExports, bytes]:
    """Begin again, as `restart`, and let blocks of prompts leave an engine.

    Args:
        engine: Idle; this is called on its thread.

    Returns:
        Its exports, and the layout of its blocks.

    Raises:
        ConfigError: Blocks of the model cannot be moved.
    """
    layout = _layout(engine)
    loaded = engine.stepper.loaded
    states = StatePieces.of(loaded, block_bytes(loaded.kv_cache))
    exports = BlockExports(BlockContents(engine.config, loaded), states)
    _use(engine, exports)
    return exports, layout


def import_blocks(
    engine: Engine, new_fetcher: Callable[[bytes, int], Fetcher], *, is_strict: bool
) -> BlockImports:
    """Begin again, as `restart`, and let others compute long prompts of an engine.

    Args:
        engine: Idle; this is called on its thread.
        new_fetcher: Takes the layout of the blocks and the bytes of one.
        is_strict: Whether a request fails whose blocks do not come.

    Raises:
        ConfigError: Blocks of the model cannot be moved.
    """
    layout = _layout(engine)
    loaded = engine.stepper.loaded
    num_bytes = block_bytes(loaded.kv_cache)
    states = StatePieces.of(loaded, num_bytes)
    imports = BlockImports(
        loaded.kv_cache,
        states,
        new_fetcher(layout, num_bytes),
        engine.config.block_size,
        engine.clock,
        is_strict=is_strict,
    )
    _use(engine, imports)
    return imports


def _layout(engine: Engine) -> bytes:
    """Return the layout of the blocks of an engine, whose model is checked first."""
    loaded = engine.stepper.loaded
    check_model(loaded, "role")
    return engine.block_layout()


def _use(engine: Engine, role: BlockExchange) -> None:
    store = engine.prefix_store
    engine.stepper.use_exchange(role if store is None else StoreFirst(store, role))
