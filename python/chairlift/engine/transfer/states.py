"""Recurrent states in pieces of the size of a block, which move as further blocks of a prompt.

A hybrid can continue a prompt behind its blocks only with the state behind the last of them. So
that state follows the blocks: its pieces have the numbers behind theirs.
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from chairlift.engine.loading.loaded import LoadedModel
from chairlift.model.parts.recurrent import States, num_states


class StatePieces:
    """Copies snapshots of recurrent states out of the memory of a model, and into it.

    Attributes:
        layers: The states of each layer, uint8 `[rows, bytes]`.
        num_pieces: Pieces of a snapshot.
        num_bytes: Bytes of all of them.
    """

    def __init__(self, states: States, first_row: int, piece_bytes: int) -> None:
        """Copy the states of a model, in memory of the CPU.

        Args:
            states: The states of each layer, float32 `[rows, ...]`.
            first_row: The row of the first snapshot.
            piece_bytes: Bytes of a piece.
        """
        tensors = [tensor for layer in states for tensor in layer]
        self.layers = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
        self._rows: list[NDArray[np.uint8]] = [layer.numpy() for layer in self.layers]
        self._first_row, self._piece_bytes = first_row, piece_bytes
        self.num_pieces = -(-sum(layer.shape[1] for layer in self.layers) // piece_bytes)
        self.num_bytes = self.num_pieces * piece_bytes

    @classmethod
    def of(cls, loaded: LoadedModel, piece_bytes: int) -> Self | None:
        """Return the pieces of a model; None if it has no recurrent states."""
        if loaded.states is None:
            return None
        return cls(loaded.states, num_states(loaded.resolved.settings.max_num_seqs), piece_bytes)

    def row(self, snapshot: int) -> int:
        """Return the row of a snapshot in `layers`."""
        return self._first_row + snapshot

    def read(self, snapshot: int) -> list[bytes]:
        """Return the pieces of a snapshot; zeros fill the last one."""
        row, size = self.row(snapshot), self._piece_bytes
        data = b"".join(layer[row].tobytes() for layer in self._rows)
        padded = data.ljust(self.num_bytes, b"\0")
        return [padded[start : start + size] for start in range(0, self.num_bytes, size)]

    def write(self, snapshot: int, pieces: list[bytes]) -> None:
        """Fill a snapshot with all of its pieces."""
        row, start = self.row(snapshot), 0
        data = np.frombuffer(b"".join(pieces), np.uint8)
        for layer in self._rows:
            end = start + layer.shape[1]
            layer[row] = data[start:end]
            start = end
