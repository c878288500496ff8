"""torch is imported without the parts that no server uses, and has them when they are used."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from chairlift.engine.loading.torch_import import TRIED_VERSIONS

pytestmark = pytest.mark.skipif(
    not version("torch").startswith(TRIED_VERSIONS), reason="this version is imported whole"
)

SERVE = """
from chairlift.engine.loading.torch_import import PARTS, import_torch, parts_put_off
import_torch()
from chairlift import Chat, ChatMessage, Engine, Sampling
engine = Engine("demo", quantize="int8")
prompts = [Chat([ChatMessage("user", "Hello!")]), "One two"]
for sampling in (Sampling(temperature=0), Sampling(seed=1, top_k=5)):
    assert all(answer.text for answer in engine.generate(prompts, sampling))
print(len(PARTS) - len(parts_put_off()))
"""

USE = """
from chairlift.engine.loading.torch_import import import_torch, parts_put_off
import_torch()
import torch
assert parts_put_off()
ones = torch.ones(2, 3)
doubled = torch.vmap(lambda row: 2 * row)(ones)
assert doubled.tolist() == [[2.0] * 3] * 2
assert parts_put_off() == []
assert (torch.empty(3, device="meta") + 1).shape == (3,)
assert not torch.compiler.is_compiling()
traced = torch.fx.symbolic_trace(torch.nn.Linear(3, 2))
torch.optim.SGD(traced.parameters(), 0.1)
assert torch._subclasses.fake_tensor.FakeTensor
"""

PRINT = """
from chairlift.engine.loading.torch_import import import_torch, parts_put_off
import_torch()
import torch
assert str(torch.ones(1)) == "tensor([1.])"
assert torch._subclasses.fake_tensor.FakeTensor
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_answers_without_the_parts() -> None:
    assert run(SERVE) == "0\n"


@pytest.mark.parametrize("code", [USE, PRINT], ids=["a part", "another module of torch"])
def test_parts_are_there_when_they_are_used(code: str) -> None:
    run(code)
