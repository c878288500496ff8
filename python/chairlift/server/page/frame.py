"""One frame, encoded for all its readers."""

from typing import Any

from chairlift.server.http.json_pieces import to_json

_Entries = list[list[int | str]]


class Frame:
    """A frame but for what differs between its readers."""

    def __init__(self, body: dict[str, Any], new: _Entries, known: _Entries) -> None:
        """Encode it.

        Args:
            body: All fields but `new` and `num_dropped`.
            new: Requests that it is the first to name.
            known: All that have a number, for readers that have missed frames.
        """
        self.num_steps = len(body["start_us"])
        self._head = b"event: frame\ndata: " + to_json(body)[:-1]
        self._known = known
        self._plain = self._with(new, 0)

    def _with(self, new: _Entries, num_dropped: int) -> bytes:
        return self._head + b',"new":%b,"num_dropped":%d}\n\n' % (to_json(new), num_dropped)

    def encoded(self, *, follows: bool, num_dropped: int) -> bytes:
        """Return the event.

        Args:
            follows: Whether the reader has the frame before it; otherwise all requests are named.
            num_dropped: Steps before it that the reader does not get.
        """
        return self._plain if follows else self._with(self._known, num_dropped)
