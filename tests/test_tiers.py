"""The list of what `make test` leaves out names what is there, and is chosen as it says."""

import re

from tests.tiers import TESTS, choose, quick_cases


def test_the_list_names_test_functions_that_exist() -> None:
    listed = quick_cases()
    assert listed
    for name in listed:
        path, _, function = name.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {re.escape(function)}\(", text, re.MULTILINE), name


def test_a_long_test_is_left_out_and_many_cases_are_cut_to_some() -> None:
    seconds = {
        "short": [0.5],
        "long": [9.0],
        "many": [0.5] * 20,
        "few": [0.5] * 3,
        "tiny": [0.001] * 500,
    }
    assert choose(seconds) == {"long": 0, "many": 2, "few": 2}
