"""Every damage to a small file either leaves a model that loads, or is named in one line."""

import resource
import tracemalloc
from contextlib import ExitStack

import pytest
from chairlift.api.errors import ModelError
from chairlift.checkpoints.gguf.reader import GgufHeader
from chairlift.checkpoints.gguf.tokenizer import read_tokenizer
from chairlift.model.config import ModelConfig
from chairlift.model.weights.layers import load_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.gguf.files import MIXED, small_model, write_model


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A model of one layer, whose header is as short as can be."""
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    model = small_model(
        num_hidden_layers=1,
        vocab_size=8,
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return write_model(path, model, MIXED).read_bytes()


def load(path):
    """Load all of a model that a file describes."""
    config = ModelConfig.load(path)
    load_weights(path, config)
    with ExitStack() as files:
        read_tokenizer(GgufHeader.open(path, files))


def loads_or_says_why(path, content):
    """Load a damaged file; return whether it loads still."""
    path.write_bytes(content)
    try:
        load(path)
    except ModelError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        assert len(message) < len(str(path)) + 500
        return False
    return True


@pytest.fixture
def little_memory():
    """Fail if the process needed much more memory at any time of the test than before it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def header_bytes(content, path):
    path.write_bytes(content)
    with ExitStack() as files:
        return min(t.begin for t in GgufHeader.open(path, files).tensors.values())


def test_the_file_loads(content, tmp_path):
    assert loads_or_says_why(tmp_path / "m.gguf", content)


@pytest.mark.usefixtures("little_memory")
def test_every_prefix_is_named(content, tmp_path):
    path = tmp_path / "m.gguf"
    # Each prefix of the header, and some that end in the data of each tensor.
    header = header_bytes(content, path)
    for length in (*range(header), *range(header, len(content), 61), len(content) - 1):
        assert not loads_or_says_why(path, content[:length]), length


FLIPS = (0xFF,)
"""What is always tried of each byte; each bit alone in `make slow`."""


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    "flipped",
    [*FLIPS, *(pytest.param(1 << bit, marks=pytest.mark.slow) for bit in range(8))],
)
def test_every_byte_of_the_header_may_be_wrong(content, tmp_path, flipped):
    path = tmp_path / "m.gguf"
    outcomes = {}
    for place in range(header_bytes(content, path)):
        damaged = bytearray(content)
        damaged[place] ^= flipped
        outcomes[place] = loads_or_says_why(path, damaged)
    # Magic and counts are needed; the padding before the data is not.
    assert not any(outcomes[place] for place in (*range(4), *range(8, 24)))
    assert outcomes[max(outcomes)]


EDGES = (0, 1, 2**8 - 1, 2**16, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
pieces = st.one_of(
    st.binary(max_size=24),
    st.sampled_from([edge.to_bytes(8, "little") for edge in EDGES]),
    st.sampled_from([(edge % 2**32).to_bytes(4, "little") for edge in EDGES]),
)


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(place=st.floats(0, 1, exclude_max=True), removed=st.integers(0, 24), piece=pieces)
def test_a_piece_of_the_header_may_be_another(content, tmp_path, place, removed, piece):
    path = tmp_path / "m.gguf"
    first = int(place * header_bytes(content, path))
    removed = len(piece) if removed > 12 else removed
    tracemalloc.start()
    try:
        loads_or_says_why(path, content[:first] + piece + content[first + removed :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
