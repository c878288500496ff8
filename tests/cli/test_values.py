import pytest
from chairlift.api.errors import ConfigError
from chairlift.cli.values import format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GiB", 2 * 2**30), ("512MB", 512 * 10**6), ("1.5 kib", 1536), ("42", 42), ("7b", 7)],
)
def test_sizes_have_units(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(2 * 2**30, "2.00 GiB"), (1536, "1.50 KiB"), (512, "512 B"), (3 * 2**40, "3.00 TiB")],
)
def test_bytes_are_written_with_a_unit(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("5s", 5.0), ("2m", 120.0), ("0.25", 0.25), ("1h", 3600.0), ("9us", 9e-6)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "GiB", "-1s", "2 GiB 3", "inf", "nan", "1e9", "2parsecs"])
def test_other_words_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="2GiB"):
        parse_size(text)
    with pytest.raises(ConfigError, match="50ms"):
        parse_duration(text)
