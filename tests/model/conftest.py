from functools import cache

import pytest

from tests.model import families


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Gives `(family, seed) -> (reference model, folder of its checkpoint)`, built once each."""

    @cache
    def get(family, seed=0):
        folder = tmp_path_factory.mktemp("model")
        reference = families.build(family, seed)
        reference.save_pretrained(folder)
        return reference, folder

    return get
