from functools import cache

import pytest
import torch

from tests.model import families


@pytest.fixture(scope="package", autouse=True)
def one_torch_thread():
    """Tensors here are so small that threads of the reference only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Return `(family, seed) -> (reference model, folder of its checkpoint)`, built once each."""

    @cache
    def get(family, seed=0):
        folder = tmp_path_factory.mktemp("model")
        reference = families.build(family, seed)
        families.save(reference, folder)
        return reference, folder

    return get
