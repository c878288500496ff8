"""Options that mypy must refuse: it runs over this file in `make lint`, and nothing executes it.

An `ignore` that ignores nothing is an error there, and so is each mistake that mypy stops to see.
"""

from chairlift.client import connect, connect_async, new_start


def mistakes() -> None:
    """Use options rightly, then misspell each way to give one, then give wrong types."""
    client = connect("127.0.0.1:1")
    client.generate("x", max_tokens=3, stop="a", logprobs=True)
    client.generate("x", stop=["a", "b"])
    client.generate("x", max_tokenz=3)  # type: ignore[call-arg]
    connect_async("127.0.0.1:1").generate("x", max_tokenz=3)  # type: ignore[call-arg]
    new_start("x", max_tokenz=3)  # type: ignore[call-arg]
    client.generate("x", logprobs="yes")  # type: ignore[arg-type]
    client.generate("x", stop=b"a")  # type: ignore[arg-type]
