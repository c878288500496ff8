"""The gain of a policy and its bound, from the rows and the time of a step."""

import pytest
from chairlift.bench.bound import StepCurve, gain_of, main_pair


def run(policy, rate, rows_used, repeat=1, other_cores=0.0):
    return {
        "policy": policy,
        "rows": 16,
        "rate_per_s": "max",
        "repeat": repeat,
        "tokens_per_s": rate,
        "mean_rows": rows_used,
        "step_curve": [[4, 100, 0.010], [6, 100, 0.010], [14, 100, 0.017], [16, 1, 9.0]],
        "other_cores": other_cores,
        "cores": 2,
    }


def test_the_gain_is_what_slots_allow_and_longer_steps_take_back():
    runs = [run("static", 100, 6), run("continuous", 137, 14)]
    gain = gain_of(runs, "continuous", "static")
    assert gain.slot_ratio == pytest.approx(14 / 6)
    assert gain.step_ratio == pytest.approx(1.7)
    assert gain.predicted == pytest.approx(14 / 6 / 1.7)
    assert gain.sentence() == (
        "On this machine continuous batching gave 1.37x of static batching at 16 rows; "
        "2.3x is the most that slots allow, and a step of 14 rows takes 1.7x one of 6."
    )


def test_neighbouring_runs_are_compared_and_the_median_counts():
    runs = [
        run(policy, rate, rows, repeat)
        for repeat, rates in enumerate([(100, 130), (200, 400), (50, 70)], start=1)
        for policy, rate, rows in [("static", rates[0], 6), ("continuous", rates[1], 14)]
    ]
    gain = gain_of(runs, "continuous", "static")
    assert (gain.measured, gain.measured_min, gain.measured_max) == (1.4, 1.3, 2.0)
    assert "gave 1.40x (1.30 to 2.00) of" in gain.sentence()


def test_a_busy_machine_gives_no_claim():
    runs = [run("static", 100, 6), run("continuous", 137, 14, other_cores=0.6)]
    gain = gain_of(runs, "continuous", "static")
    assert gain.sentence().startswith("No claim: other work used 0.6 of 2 cores meanwhile")


def test_a_time_between_two_row_counts_is_on_the_line_between_them():
    curve = StepCurve([[[4, 10, 0.01], [8, 30, 0.02]], [[8, 10, 0.06]]])
    assert curve.time_s(8) == pytest.approx(0.03)
    assert curve.time_s(6) == pytest.approx(0.02)
    assert StepCurve([]).time_s(3) is None


def test_the_first_sentence_compares_the_best_known_policies():
    assert main_pair(["none", "static", "dynamic", "continuous"]) == ("continuous", "static")
    assert main_pair(["none", "continuous"]) == ("continuous", "none")
    assert main_pair(["continuous"]) is None
