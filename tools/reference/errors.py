"""The page of reasons."""

from chairlift.api.errors import Reason

from tools.reference.markdown import page, table

_LEAD = """
An error of gRPC has a `chairlift.v1.Error` among its details, or is one as an event; an error of
HTTP has the reason as its `code`. The message names the field at fault, what was expected, and what
was got. A status without a retry means that the same request fails again.
"""


def errors_page() -> str:
    """Return the page: a line for each reason, in the order of the code."""
    return page(
        "Errors",
        _LEAD,
        table(
            ("Reason", "gRPC code", "HTTP status", "Retry after", "Message without a field"),
            [_line(reason) for reason in Reason],
        ),
    )


def _line(reason: Reason) -> tuple[str, ...]:
    wait = "" if reason.retry_after_s is None else f"{reason.retry_after_s:g} s"
    status = f"{reason.http_status.value}"
    return f"`{reason.value}`", f"`{reason.code}`", status, wait, reason.message
