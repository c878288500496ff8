"""Random configurations of every family: what loads computes the logits of `transformers`."""

import json
import re
import secrets
from collections import Counter
from dataclasses import dataclass, fields
from random import Random

import pytest
import torch
import transformers
from chairlift.api.errors import ModelError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from tests.model.families import build_model, random_tokens, save
from tests.model.family_table import FAMILIES
from tests.model.paged import load_model, prompt_logits
from tests.model.random_configs import draw, is_known

CLASSES = {config_class.model_type: config_class for config_class, _ in FAMILIES.values()}
NUM_QUICK, NUM_SLOW = 5, 400
# Longer than the windows and the original lengths of scaled RoPE.
PROMPT = random_tokens(75, 0)
TOLERANCE = 5e-5
COMPARED, REFUSED, SKIPPED = "compared", "refused", "skipped"


@dataclass(frozen=True)
class Case:
    """A configuration, and a seed of the parameters of a model."""

    kind: str
    values: dict
    seed: int

    def __str__(self):
        return f"{self.kind}: {json.dumps(self.values)}"


@pytest.fixture(scope="module", autouse=True)
def silent_library():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_that_a_class_reads_is_drawn_or_known_to_be_irrelevant(kind):
    unknown = [field.name for field in fields(CLASSES[kind]) if not is_known(field.name)]
    assert not unknown


def draw_case(kind, seed):
    values = draw(Random(f"{kind} {seed}"), CLASSES[kind])
    names = [MODEL_FOR_CAUSAL_LM_MAPPING[CLASSES[kind]].__name__]
    return Case(kind, {"architectures": names, **values}, seed)


def outcome(case, folder):
    """Write a model, and return what became of it; fail where both sides compute other logits."""
    path = folder / "config.json"
    path.write_text(json.dumps(case.values))
    try:
        reference = build_model(AutoConfig.from_pretrained(folder), case.seed)
        expected = reference(torch.tensor([PROMPT]), use_cache=False).logits[0]
        save(reference, folder)
    except Exception:
        # `transformers` has no error of its own for a configuration that cannot be.
        return SKIPPED
    path.write_text(json.dumps(case.values))
    try:
        ours = prompt_logits(load_model(folder), PROMPT)
    except ModelError as error:
        return REFUSED if names_a_field(str(error), path) else None
    if not expected.isfinite().all():
        return SKIPPED
    assert ours.shape == expected.shape, case
    gaps = (ours - expected).abs().amax(-1) / expected.abs().max().clamp(min=1)
    return COMPARED if (gaps > TOLERANCE).float().mean() < 0.1 else None


def names_a_field(message, path):
    """Return whether one line names a field of config.json, or a tensor that it asks for."""
    start, _, rest = message.partition(": ")
    field = re.split(r"[.:\[ ]", rest)[0]
    known = field in {"layers", "hybrid_override_pattern"} or is_known(field)
    known |= start == str(path.parent / "model.safetensors")
    return "\n" not in message and start.startswith(str(path.parent)) and known


def counted(kinds, seeds, folder):
    """Return how many configurations had which outcome."""
    counts = Counter()
    for kind in kinds:
        for seed in seeds:
            case = draw_case(kind, seed)
            found = outcome(case, folder)
            if found is None:
                # A router near a tie chooses another expert, for one set of parameters.
                found = outcome(Case(kind, case.values, seed + 1), folder)
            assert found is not None, f"seed {seed}: {case}"
            counts[found] += 1
    return counts


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_random_configurations_have_the_logits_of_transformers_or_do_not_load(tmp_path):
    counts = counted(CLASSES, range(NUM_QUICK), tmp_path)
    assert counts[COMPARED] > 0.7 * counts.total(), counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", CLASSES)
def test_many_random_configurations_have_the_logits_of_transformers_or_do_not_load(kind, tmp_path):
    first = secrets.randbits(32)
    print(f"seeds from {first}")
    counts = counted([kind], range(first, first + NUM_SLOW), tmp_path)
    assert counts[COMPARED] > 0.4 * counts.total(), counts
