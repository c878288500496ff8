"""What `make bench-cuda` runs on a GPU, as far as it can run without one."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from chairlift.kernels.cuda.sources import ModelKernels
from chairlift.model.specs.layer_parts import Experts
from chairlift.model.specs.model_spec import LayerShape

from benchmarks.cuda.attention import Batch, torch_attention
from benchmarks.cuda.correctness import TOLERANCE, mistakes
from benchmarks.cuda.end_to_end import QWEN3_0_6B, Bench, qwen3
from benchmarks.cuda.mixtures import Mixture
from benchmarks.cuda.others import FlexAttention, Product, flex_attention, products
from tests.cuda.emulated_device import EmulatedDevice
from tests.forked import run_python

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""


@pytest.fixture(scope="module")
def device():
    device = EmulatedDevice()
    device.load(
        ModelKernels(torch.bfloat16, torch.bfloat16, (128,), has_experts=True, has_states=True)
    )
    return device


def test_its_checks_pass(device):
    errors = dict(mistakes(device))
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == 18


def test_its_model_answers_every_request_in_full(device):
    model = qwen3(LayerShape(64, 64, 2, 1, 128), num_layers=1, vocab_size=512)
    small = replace(model, max_model_len=64)
    bench = Bench(small, device, max_num_seqs=3, max_num_batched_tokens=32)
    lengths = [(20, 5), (3, 7), (40, 2), (1, 4)]
    for prompt, output in lengths:
        bench.add(prompt, output)
    result = bench.run()
    assert result.num_output_tokens == sum(output for _, output in lengths)
    assert bench.weight_bytes() == 2 * (64 * 512 + 64 * 256 * 3 + 64 * 64 * 3)
    assert bench.kv_bytes_per_token() == 2 * 128 * 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("num_queries", [1, 40])
def test_flex_attention_is_asked_for_what_the_others_compute(num_queries):
    batch = Batch("", [40, 40], [num_queries] * 2, num_heads=4, num_kv_heads=2, head_dim=16)
    query = torch.randn(2, 4, num_queries, 16)
    key, value = torch.randn(2, 2, 2, 40, 16)
    expected = torch_attention(batch)(query, key, value)
    found = flex_attention(batch, torch.device("cpu"))(query, key, value)
    torch.testing.assert_close(found, expected)


def test_flex_attention_that_fails_is_one_line_and_is_not_tried_again(device):
    flex = FlexAttention(device)
    assert flex.seconds(Batch("", [40], [1], num_heads=3, num_kv_heads=2), 1) is None
    assert flex.unsupported_reason.count("\n") == 0
    assert flex.seconds(Batch("", [40], [1]), 1) is None


def test_the_traffic_of_experts_is_that_of_the_chosen():
    mixture = Mixture(Experts(6, 2, 8, "softmax", min_weight_sum=0.0), 16, torch.device("cpu"))
    logits = torch.tensor([[9.0, 8, 0, 0, 0, 0], [0, 9, 0, 8, 0, 0]])
    assert mixture.num_bytes([logits, logits[:1]]) == 2.5 * 2 * 3 * 8 * 16
    assert mixture.num_operations(3) == 2 * 3 * 2 * 3 * 8 * 16
    assert [c.shape for c in mixture.choices(5, 2)] == [(5, 6)] * 2


def test_linear_layers_are_those_of_the_model():
    sizes = {(p.in_features, p.out_features) for p in products(QWEN3_0_6B)}
    assert sizes == {(1024, 6144), (1024, 151_936)}
    product = Product("", 3, 64, 32, torch.float32)
    assert product.num_bytes == 2 * 32 * 64 + 2 * 3 * 64 + 4 * 3 * 32
    assert product.num_operations == 2 * 3 * 32 * 64
    first, second, *_ = (launch().clone() for launch in product.launches(torch.device("cpu")))
    assert first.shape == (3, 32)
    assert first.dtype == torch.float32
    assert not torch.equal(first, second), "the weights are others"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_gets_one_line():
    ran = run_python("-m", "benchmarks.cuda")
    assert ran.returncode == 1
    assert ran.stderr == "bench-cuda: no GPU: PyTorch finds no CUDA device on this machine\n"


def test_it_needs_neither_a_server_nor_a_tokenizer():
    blocked = ["grpc", "transformers", "pydantic", "tokenizers", "typer", "jinja2"]
    code = f"""import sys
sys.modules.update(dict.fromkeys({blocked}))
import benchmarks.cuda.correctness, benchmarks.cuda.end_to_end, benchmarks.cuda.others
import chairlift.kernels.cuda.device"""
    subprocess.run([sys.executable, "-c", code], check=True)
