"""Steps whose launches are recorded once and replayed together.

A thread takes longer to start a kernel than a GPU takes for most of them. So a step is padded to a
size for which there is a recording:

    a batch of decodes      rows, tokens and samples to one of `decode_sizes`
    any other step          tokens to one of `step_sizes`; rows to as many, at most all; samples to
                            `FEW_SAMPLES` or to as many as rows

Rows of the padding have no tokens, its tokens no slot of the cache, its samples and tiles no row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from chairlift.attention.cuda import TILE_ROWS
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.staging import Inputs
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Recorder
from chairlift.kernels.cuda.sources import tile_rows
from chairlift.model.specs.model_spec import LayerShape

Captured = Callable[[int, int], None]
"""Called with the number of sizes that are recorded, and their total."""

MAX_RECORDED_TOKENS: Final = 2048
"""A larger step is not recorded: it takes a GPU longer than its launches take a thread."""
MAX_RECORDED_ROWS: Final = 512
"""A larger batch of decodes is not recorded."""

FEW_SAMPLES: Final = 32
"""The last layer and the head compute for samples alone: many steps have few."""

_MANY_TILES: Final = 1024
"""Four waves of two for each processor of a large GPU: a last wave that is not full costs little
then."""


class StepSizes(NamedTuple):
    """How many there are of what a forward pass has one or more of per row."""

    num_rows: int
    num_tokens: int
    num_samples: int
    is_decodes: bool
    """Whether each row has one token, which samples."""

    @classmethod
    def of(cls, num_rows: int, num_tokens: int, num_samples: int) -> "StepSizes":
        """Return the sizes of a step without padding."""
        is_decodes = num_rows == num_tokens == num_samples
        return cls(num_rows, num_tokens, num_samples, is_decodes)


class WorkSizes(NamedTuple):
    """How the attention of a step is cut, for each KV group; see `AttentionWork`."""

    num_splits: list[int]
    split_rows: list[int]
    """The most packed rows of a row in the splits."""
    num_tiles: list[int]
    tile_rows: int
    """Packed rows of a tile, of all groups."""


class Recordings:
    """The launches of padded steps."""

    def __init__(self, shape: RunnerShape, groups: Sequence[LayerShape], max_tiles: int) -> None:
        """Start with no recordings.

        Args:
            shape: Sizes of the runner.
            groups: Shape of the layers of each KV group.
            max_tiles: Tiles of a KV group that the inputs have room for.
        """
        self._max_num_seqs = shape.max_num_seqs
        self._max_num_tokens = shape.max_num_batched_tokens
        self._groups = groups
        self._max_tiles = max_tiles
        self._passes: dict[StepSizes, tuple[WorkSizes, Callable[[], None]]] = {}
        self._draws: dict[int, Callable[[], None]] = {}

    def record(
        self,
        recorder: Recorder,
        compute: Callable[[StepSizes, WorkSizes], None],
        draw: Callable[[int], None] | None,
        on_capture: Captured | None,
    ) -> None:
        """Record every size, the largest first, so that the others find its memory.

        Args:
            recorder: The device's.
            compute: Launches a forward pass up to its logits.
            draw: Launches so many draws that ask for nothing more than the tables have; None where
                another process draws.
            on_capture: Called after each size.
        """
        steps = [
            sizes for size in step_sizes(self._max_num_tokens) for sizes in self._padded_steps(size)
        ]
        batches = decode_sizes(self._max_num_seqs)
        decodes = [StepSizes(size, size, size, is_decodes=True) for size in batches]
        passes = {}
        for done, sizes in enumerate([*steps[::-1], *decodes[::-1]], start=1):
            work = self._max_work(sizes)
            passes[sizes] = work, recorder.capture(partial(compute, sizes, work))
            if sizes.is_decodes and draw is not None:
                size = sizes.num_samples
                self._draws[size] = recorder.capture(partial(draw, size))
            if on_capture is not None:
                on_capture(done, len(steps) + len(decodes))
        # In ascending order, as `padded` looks for one.
        self._passes = {sizes: passes[sizes] for sizes in (*decodes, *steps)}
        self._draws = {size: self._draws[size] for size in batches if size in self._draws}

    def padded(self, sizes: StepSizes) -> StepSizes:
        """Return the sizes of the smallest recording that holds a step; its own if none does."""
        fitting = (
            recorded
            for recorded in self._passes
            if recorded.is_decodes == sizes.is_decodes and _holds(recorded, sizes)
        )
        return next(fitting, sizes)

    def forward(self, padded: StepSizes, work: WorkSizes) -> Callable[[], None] | None:
        """Return what replays a forward pass of these sizes; None without such a recording."""
        limits, replay = self._passes.get(padded, (None, None))
        if limits is None:
            return None
        tiles = zip(work.num_tiles, limits.num_tiles, strict=True)
        splits = zip(work.split_rows, limits.split_rows, strict=True)
        fits = all(count <= limit for count, limit in tiles) and all(
            rows <= ops.decode_tile_rows(limit) for rows, limit in splits
        )
        return replay if fits else None

    def num_draws(self, num_samples: int) -> int:
        """Return the size of the smallest recording of draws that holds these; 0 if none does."""
        return next((size for size in self._draws if size >= num_samples > 0), 0)

    def draw(self, num_samples: int) -> Callable[[], None] | None:
        """Return what replays the draws, padded to `num_draws`; None without a recording."""
        return self._draws.get(self.num_draws(num_samples))

    def tile_rows(self, num_tokens: int) -> int:
        """Return the rows of a step's tiles; which ones changes no bits.

        They are large where there are enough for every processor.

        Args:
            num_tokens: Tokens with the padding.
        """
        small, large = TILE_ROWS
        has_many = num_tokens * max(shape.num_heads for shape in self._groups) // large
        is_possible = all(large in tile_rows(shape.head_dim) for shape in self._groups)
        return large if has_many >= _MANY_TILES and is_possible else small

    def _padded_steps(self, num_tokens: int) -> list[StepSizes]:
        """Return the recordings of steps with so many tokens, that with fewer samples first."""
        num_rows = min(num_tokens, self._max_num_seqs)
        counts = sorted({min(num_rows, FEW_SAMPLES), num_rows})
        return [StepSizes(num_rows, num_tokens, count, is_decodes=False) for count in counts]

    def _max_work(self, sizes: StepSizes) -> WorkSizes:
        """Return the work that the launches of these sizes are made for."""
        packed = [shape.queries_per_kv_head for shape in self._groups]
        rows_of_tile = self.tile_rows(sizes.num_tokens)
        num_tiles = [0 for _ in self._groups]
        if not sizes.is_decodes:
            num_tiles = [self._max_tiles_of(sizes, shape, rows_of_tile) for shape in self._groups]
        return WorkSizes([1 for _ in self._groups], packed, num_tiles, rows_of_tile)

    def _max_tiles_of(self, sizes: StepSizes, shape: LayerShape, rows_of_tile: int) -> int:
        """Return the tiles of any step of these sizes whose other rows all have splits."""
        packed = sizes.num_tokens * shape.queries_per_kv_head
        # A row in tiles has more packed rows than a split can have, and one tile that is not full.
        rows = min(sizes.num_rows, packed // (ops.MAX_DECODE_ROWS + 1))
        return min(self._max_tiles, (packed // rows_of_tile + rows) * shape.num_kv_heads)


def _holds(recorded: StepSizes, sizes: StepSizes) -> bool:
    return (
        recorded.num_tokens >= sizes.num_tokens
        and recorded.num_rows >= sizes.num_rows
        and recorded.num_samples >= sizes.num_samples
    )


def pad(host: Inputs, sizes: StepSizes, padded: StepSizes, num_draws: int) -> None:
    """Write what computes nothing behind the inputs of a step.

    Args:
        host: The inputs.
        sizes: What the step has.
        padded: What is launched.
        num_draws: Draws that are launched, if that is more than the step has.
    """
    rows = slice(sizes.num_rows, padded.num_rows)
    tokens = slice(sizes.num_tokens, padded.num_tokens)
    samples = slice(sizes.num_samples, max(padded.num_samples, num_draws, sizes.num_samples))
    host.query_start_loc[rows.start + 1 : rows.stop + 1] = sizes.num_tokens
    host.slot_mapping[:, tokens] = -1
    host.drawn_rows[samples] = -1
    host.top_p[samples] = 1
    for part in (host.rows, host.seq_lens):
        part[rows] = 0
    for part in (host.input_ids, host.positions):
        part[tokens] = 0
    for part in (host.sample_rows, host.temperature, host.top_k, host.min_p):
        part[samples] = 0
    for part in (host.seed, host.index, host.position):
        part[samples] = 0


def pad_tiles(host: Inputs, work: WorkSizes) -> None:
    """Write behind the tiles of each KV group that there are no more: a launch may be for more."""
    for group, num_tiles in enumerate(work.num_tiles):
        host.tiles[group, num_tiles:, 0] = -1


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Return the batches of decodes whose launches are recorded, in ascending order."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32)]
    largest = min(max_num_seqs, MAX_RECORDED_ROWS)
    return [size for size in sizes if size < largest] + [largest]


def step_sizes(max_num_tokens: int) -> list[int]:
    """Return the tokens of other steps whose launches are recorded, in ascending order.

    Eight in each octave: at most an eighth of what is computed is padding.
    """
    octaves = [range(start, 2 * start, start // 8) for start in (64, 128, 256, 512, 1024)]
    sizes = [*range(8, 64, 8), *(size for octave in octaves for size in octave)]
    largest = min(max_num_tokens, MAX_RECORDED_TOKENS)
    return [size for size in sizes if size < largest] + [largest]
