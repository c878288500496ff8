"""What the bindings refuse, by the name of the argument."""

import mmap
import re
import warnings
from unittest import mock

import pytest
import torch
from chairlift import _core
from torch._subclasses.fake_tensor import FakeTensorMode


def norm(x=None, weight=None, out=None):
    """Call `rms_norm` with good arguments, save those given."""
    x = torch.ones(3, 8) if x is None else x
    weight = torch.ones(8) if weight is None else weight
    out = torch.empty(3, 8) if out is None else out
    _core.rms_norm(x, weight, 1e-6, out)


def test_the_good_call_is_good():
    norm()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1.0]}, "expected a torch.Tensor, got list\nwhile processing 'x'"),
        (
            {"x": torch.ones(3, 8, device="meta")},
            "expected a CPU tensor, got one on meta\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).half()},
            "expected one of float32, bfloat16, uint8, int8, int32, int64, got torch.float16"
            "\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).to_sparse()},
            "expected a dense tensor, got torch.sparse_coo\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).to(torch.float8_e4m3fn)},
            "expected one of float32, bfloat16, uint8, int8, int32, int64, got torch.float8_e4m3fn"
            "\nwhile processing 'x'",
        ),
        ({"x": torch.ones(3, 8).int()}, "x: expected float32 or bfloat16, got int32"),
        ({"weight": torch.ones(8).bfloat16()}, "weight: expected float32, got bfloat16"),
        ({"out": torch.ones(3, 8).bfloat16()}, "out: expected float32, got bfloat16"),
    ],
)
def test_a_wrong_kind_is_a_type_error(arguments, message):
    with pytest.raises(TypeError, match=r"^" + re.escape(message)):
        norm(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(8)}, "x: expected 2 dimensions, got 1"),
        ({"x": torch.ones(3, 16)[:, ::2]}, "x: expected contiguous rows, got strides [16, 2]"),
        ({"x": torch.ones(1, 8).expand(3, 8)}, "x: expected contiguous rows, got strides [0, 1]"),
        ({"weight": torch.ones(16)[::2]}, "weight: expected a contiguous tensor, got strides [2]"),
        ({"weight": torch.ones(7)}, "weight: expected the width of x, 8, got 7"),
        ({"out": torch.empty(3, 7)}, "out: expected the width of x, 8, got 7"),
        ({"out": torch.empty(2, 8)}, "out: expected as many rows as x: 3, got 2"),
    ],
)
def test_a_wrong_shape_is_a_value_error(arguments, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message)):
        norm(**arguments)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (torch.ones(3, 7), "update: expected the width of x, 8, got 7"),
        (torch.ones(2, 8), "update: expected as many rows as x: 3, got 2"),
    ],
)
def test_what_is_added_has_the_shape_of_what_it_is_added_to(update, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message)):
        _core.add_rms_norm(torch.ones(3, 8), update, torch.ones(8), 1e-6, torch.empty(3, 8))


def test_an_output_may_not_overlap_an_input():
    memory = torch.ones(48)
    x = memory[:24].view(3, 8)
    for start in (0, 1, 23):
        with pytest.raises(ValueError, match=r"^out: overlaps x$"):
            norm(x=x, out=memory[start : start + 24].view(3, 8))
    norm(x=x, out=memory[24:].view(3, 8))


def test_inputs_may_overlap():
    fused = torch.ones(2, 3 * 16)
    key, value = fused[:, :16].view(2, 1, 16), fused[:, 16:32].view(2, 1, 16)
    cache = torch.zeros(2, 1, 2 * 16 * 16)
    slots = torch.tensor([16, 17], dtype=torch.int32)
    _core.kv_write(key, value, cache, slots, 16)
    assert cache[1].sum() == 2 * 2 * 16
    assert cache[0].sum() == 0


def test_linear_refuses_what_does_not_fit():
    layer = _core.Linear(torch.ones(4, 8))
    with pytest.raises(TypeError, match=r"^weight: expected float32 or bfloat16, got int64$"):
        _core.Linear(torch.ones(4, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^bias: expected out_features, 4, got 3$"):
        _core.Linear(torch.ones(4, 8), torch.ones(3))
    with pytest.raises(ValueError, match=r"^x: expected in_features, 8, got 7$"):
        layer.forward(torch.ones(1, 7), torch.empty(1, 4))
    with pytest.raises(TypeError, match=r"^x: expected float32, got bfloat16$"):
        layer.forward(torch.ones(1, 8).bfloat16(), torch.empty(1, 4))
    with pytest.raises(TypeError, match=r"^out: expected float32, got bfloat16$"):
        layer.forward(torch.ones(1, 8), torch.empty(1, 4).bfloat16())


def test_rope_refuses_what_does_not_fit():
    x, angles = torch.ones(2, 1, 16), torch.ones(5, 16)
    positions = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^positions: expected positions in 0\.\.5, got 5$"):
        _core.rope(x, positions, angles)
    with pytest.raises(ValueError, match=r"^cos_sin: expected an even width of at most 16, got 24"):
        _core.rope(x, positions, torch.ones(5, 24))
    with pytest.raises(TypeError, match=r"^positions: expected int32, got int64$"):
        _core.rope(x, positions.long(), angles)
    assert torch.equal(x, torch.ones(2, 1, 16))


def test_only_one_block_size_is_supported():
    with pytest.raises(ValueError, match=r"^block_size: expected the only size 16, got 32$"):
        _core.kv_write(
            torch.ones(1, 1, 16),
            torch.ones(1, 1, 16),
            torch.ones(1, 1, 2 * 32 * 16),
            torch.zeros(1, dtype=torch.int32),
            32,
        )


@pytest.mark.parametrize("count", [0, 1025, 2**40])
def test_threads_are_one_to_1024(count):
    with pytest.raises(ValueError, match=rf"^num_threads: expected 1 to 1024, got {count}$"):
        _core.set_num_threads(count)


def test_an_object_that_claims_to_be_a_tensor_is_a_type_error():
    pretender = mock.Mock(spec=torch.Tensor)
    assert isinstance(pretender, torch.Tensor)
    with pytest.raises(TypeError, match=r"^expected a torch.Tensor, got Mock\n"):
        norm(x=pretender)


def test_a_subclass_is_a_tensor_and_one_without_memory_is_none():
    norm(weight=torch.nn.Parameter(torch.ones(8)))
    with FakeTensorMode():
        fake = torch.ones(3, 8)
    with pytest.raises(TypeError, match=r"^expected a tensor with memory of its own, got Fake"):
        norm(x=fake)


def test_a_view_that_negates_its_memory_is_a_value_error():
    message = r"^expected numbers as they are, got a negated view"
    with pytest.raises(ValueError, match=message):
        norm(x=torch._neg_view(torch.ones(3, 8)))
    imaginary = torch.ones(3, 1, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match=message):
        norm(x=imaginary, weight=torch.ones(1), out=torch.empty(3, 1))
    norm(x=imaginary.resolve_neg(), weight=torch.ones(1), out=torch.empty(3, 1))


def test_a_complex_tensor_is_a_type_error_conjugated_or_not():
    x = torch.ones(3, 8, dtype=torch.complex64)
    for value in (x, x.conj()):
        with pytest.raises(TypeError, match=r"got torch.complex64\n"):
            norm(x=value)


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_a_read_only_mapping_is_read_and_never_written(tmp_path, access):
    path = tmp_path / "ones"
    path.write_bytes(torch.ones(24).numpy().tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=access)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no tensor that cannot be written.
        mapped = torch.frombuffer(mapping, dtype=torch.float32).view(3, 8)
    out = torch.empty(3, 8)
    norm(x=mapped, out=out)
    if access == mmap.ACCESS_COPY:
        norm(x=out, out=mapped)
        return
    with pytest.raises(ValueError, match=r"^expected memory that can be written, got a read-only"):
        norm(out=mapped)


def test_sizes_that_no_memory_has_are_a_value_error():
    for shape in [(0, 2**40, 2**40), (0, 2**62)]:
        x = torch.empty(0).as_strided(shape, (1,) * len(shape))
        with pytest.raises(ValueError, match=r"^expected sizes that fit memory, got \[0, "):
            norm(x=x)
    cache = torch.empty(0).as_strided((2**29, 2**29, 0), (0, 0, 1))
    slots = torch.zeros(1, dtype=torch.int32)
    message = r"^cache: expected a size in memory, got 536870912 blocks of 536870912 heads$"
    for dtype in (torch.float32, torch.int8):
        key, stored = torch.ones(1, 1, 256), cache.to(dtype=torch.float32).view(dtype)
        with pytest.raises(ValueError, match=message):
            _core.kv_write(key, key, stored, slots, 16)


def test_a_cache_of_pairs_starts_at_a_whole_pair():
    numbers = torch.zeros(2 * 16 * 16 + 1, dtype=torch.bfloat16)
    query = torch.ones(1, 1, 16, dtype=torch.bfloat16)
    table = torch.zeros(1, 1, dtype=torch.int32)
    row, starts = torch.zeros(1, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)

    def attend(cache):
        arguments = (query, cache.view(1, 1, -1), table, row, starts, starts[1:])
        _core.paged_attention(*arguments, torch.empty_like(query), scale=1.0, block_size=16)

    attend(numbers[:-1])
    message = r"^cache: expected a start at a multiple of 4 bytes, got one 2 bytes after it$"
    with pytest.raises(ValueError, match=message):
        attend(numbers[1:])
    apart = torch.zeros(2 * 513, dtype=torch.bfloat16).view(2, 1, 513)[:, :, :512]
    message = r"^cache: expected blocks a multiple of 4 bytes apart, got 1026$"
    arguments = (query, apart, table, row, starts, starts[1:], torch.empty_like(query))
    with pytest.raises(ValueError, match=message):
        _core.paged_attention(*arguments, scale=1.0, block_size=16)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_the_bytes_of_a_layer_are_right_or_a_value_error(quantize):
    assert _core.linear_bytes(64, 64, 4, quantize) > 0
    for shape in [(2**63, 2**63), (2**64 - 1, 1), (1, 2**64 - 1), (2**40, 2**40)]:
        with pytest.raises(ValueError, match=r"^out_features, in_features: expected a layer that"):
            _core.linear_bytes(*shape, 4, quantize)


def test_rounds_are_as_many_as_can_be_counted():
    with pytest.raises(ValueError, match=r"^rounds: expected at most 4294967296, got 1844674"):
        _core.multiply_in_registers("float32", 2**64 - 1)


@pytest.mark.parametrize(
    ("starts", "options", "message"),
    [
        ([-(2**31), 2**31 - 1], {}, "seq_lens: a row has more queries than tokens"),
        ([0, 2**31 - 1], {"group": 2**20}, "group: expected at most 2147483647 packed rows, got"),
        ([0, 2**31 - 1], {"tile_rows": 1}, "tiles: expected at least 6442450941 integers, got 12"),
        ([0, 1], {"group": 2**63}, "group: expected 1 to 2147483647, got 9223372036854775808"),
        ([0, 1], {"split_len": 0}, "split_len: expected 1 to 2147483647, got 0"),
    ],
)
def test_a_step_that_cannot_be_cut_is_a_value_error_and_takes_no_memory(starts, options, message):
    cut = {"num_kv_heads": 1, "group": 1, "split_len": 64, "decode_rows": 0, "tile_rows": 64}
    with pytest.raises(ValueError, match="^" + message):
        _core.attention_work(
            torch.tensor([0], dtype=torch.int32),
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor([2**31 - 1], dtype=torch.int32),
            torch.zeros(4, dtype=torch.int32),
            torch.zeros(12, dtype=torch.int32),
            window=0,
            **(cut | options),
        )


@pytest.mark.parametrize("block_size", [0, 2**31, 2**63])
def test_a_plan_is_applied_to_blocks_of_some_size(block_size):
    names = ["rows", "input_ids", "positions", "query_start_loc", "seq_lens", "sample_rows"]
    names += ["score_rows", "score_targets", "adapters"]
    buffers = {name: torch.zeros(4, dtype=torch.int32) for name in names}
    tables = {
        name: torch.zeros(0, dtype=torch.int32)
        for name in ("computed", "last_token", "row_slot", "row_index", "row_adapter")
    }
    tables["block_tables"] = torch.zeros(1, 0, 4, dtype=torch.int32)
    buffers["slot_mapping"] = torch.zeros(1, 4, dtype=torch.int32)
    plan = torch.zeros(64, dtype=torch.int32)
    assert _core.apply_plan(plan, 16, **tables, **buffers) == (0, 0, 0, 0, 0)
    with pytest.raises(
        ValueError, match=rf"^block_size: expected 1 to 2147483647, got {block_size}"
    ):
        _core.apply_plan(plan, block_size, **tables, **buffers)
