"""The adapters of a model by slot, where its forward pass reads them."""

from pathlib import Path

from chairlift import _core
from chairlift.model.config import ModelConfig
from chairlift.model.lora.folder import AdapterFolder
from chairlift.model.lora.load import AdaptedLayers, PackedAdapter, load_adapter

LayerAdapters = AdaptedLayers[_core.AdapterTable]


class AdapterTables:
    """The tables of all layers; slots count from 1, and 0 is the model alone."""

    def __init__(self, num_layers: int, num_slots: int) -> None:
        """Make empty tables.

        Args:
            num_layers: Decoder layers of the model.
            num_slots: Adapters that they hold at most.
        """
        self.num_slots = num_slots
        self.layers: tuple[LayerAdapters, ...] = tuple(
            AdaptedLayers._make(_core.AdapterTable(num_slots) for _ in AdaptedLayers._fields)
            for _ in range(num_layers)
        )

    def read(
        self, folder: Path | AdapterFolder, config: ModelConfig, max_rank: int
    ) -> PackedAdapter:
        """Read an adapter that `set` can take, on any thread; see `load_adapter`."""
        return load_adapter(folder, config, max_rank)

    def set(self, slot: int, adapter: PackedAdapter | None) -> None:
        """Put an adapter into a slot, or empty it; call between two steps.

        Args:
            slot: One that no request uses.
            adapter: An adapter of the same model.
        """
        if adapter is None:
            for tables in self.layers:
                for table in tables:
                    table.set(slot, None)
            return
        for tables, updates in zip(self.layers, adapter.layers, strict=True):
            for table, update in zip(tables, updates, strict=True):
                table.set(slot, update)
