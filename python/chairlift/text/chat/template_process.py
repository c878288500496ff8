"""Renders conversations in processes that can be killed, which run `template_worker.py`."""

import json
from typing import Final, NoReturn

from chairlift.api.bounded_process import EndedError, ProcessPool, TooLongError
from chairlift.api.errors import Reason, RequestError

MAX_PROCESSOR_S: Final = 1.0
"""Seconds of processor time of one rendering, the compilation of the template included."""


class TemplateProcess:
    """Processes that render: one, and more while it is busy.

    Any thread may call `render` at any time.
    """

    def __init__(self) -> None:
        self._pool = ProcessPool("chairlift.text.chat.template_worker", "renders chats", "chat")

    def render(self, **arguments: object) -> str:
        """Render a conversation; the arguments are those of `chat_template.render`, as JSON values.

        Raises:
            RequestError: See `chat_template.render`; `BAD_PARAMETER` in `chat`: the template
                needs too much time; `BAD_PARAMETER` in `chat.template_arguments`: a value has no
                form in JSON; `ENGINE_BUSY`: no answer came in time; `DRAINING`: the work was
                interrupted.
        """
        try:
            message = json.dumps(arguments).encode("ascii")
        except (TypeError, ValueError, RecursionError):
            text = "chat.template_arguments: expected values that JSON can hold"
            field = "chat.template_arguments"
            raise RequestError(Reason.BAD_PARAMETER, text, field=field) from None
        try:
            answer = json.loads(self._pool.ask(message))
        except TooLongError:
            _refuse(f"chat template: it needs more than {MAX_PROCESSOR_S:g} s of processor time")
        except EndedError as error:
            _refuse(f"chat template: {error}")
        if "text" in answer:
            return str(answer["text"])
        raise RequestError(Reason[answer["reason"]], answer["message"], field="chat")


def _refuse(message: str) -> NoReturn:
    raise RequestError(Reason.BAD_PARAMETER, message, field="chat") from None
