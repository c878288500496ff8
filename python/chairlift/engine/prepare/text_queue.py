"""How much text a request may hold, and where long texts are tokenized: on a few threads.

A text waits in the queue of its tenant until a thread is free. A tenant has at most half of the
threads, and the tenants take turns, so that one tenant's texts delay another's by no more than the
pieces of work that run already; each of these is bounded by `TextLimits`, `TemplateProcess` and
`ConstraintProcess`. Work whose caller has gone is interrupted.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from chairlift import _core
from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.api.interruption import Interruption
from chairlift.api.machine import available_cores
from chairlift.api.types import Chat, Request

MAX_MESSAGES: Final = 4096
"""Messages of one conversation."""

_BYTES_PER_ID: Final = 8
"""A list of token ids may have one id for so many bytes of `max_bytes`."""
MAX_WAITING_BYTES: Final = 32 * 2**20
"""Bytes of all texts that wait for a thread."""

MAX_TENANT_WAITING_BYTES: Final = MAX_WAITING_BYTES // 2
"""Bytes of the texts of one tenant that wait."""

_SHORT_TEXT: Final = 4096
"""Characters that are tokenized at once, in a millisecond or two."""
_SHORT_IDS: Final = 16_384
"""Token ids that are checked at once."""
_FIXED_BYTES: Final = 1024
"""What a waiting text counts besides its bytes."""
_RETRY_S: Final = 1.0

_T = TypeVar("_T")


def context_words(num_tokens: int, where: str = "") -> str:
    """Return the words by which clients know that an input is too long for the context.

    litellm, LangChain and others look for them in the errors of every server.
    """
    limit = f"this model's maximum context length is {num_tokens} tokens{where}"
    return f"{limit}, and the prompt is too long; "


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Bounds of texts.

    Attributes:
        max_bytes: Bytes of any text that is tokenized, in UTF-8.
        longest_token_bytes: The most bytes of a text that one token stands for; None where there
            is no bound.
        max_model_len: Tokens of prompt and answer that the model takes.
        max_context_len: The same for this server, whose KV cache may hold less.
    """

    max_bytes: int
    longest_token_bytes: int | None
    max_model_len: int
    max_context_len: int

    @property
    def max_ids(self) -> int:
        """The most token ids that are turned into text at once."""
        return self.max_bytes // _BYTES_PER_ID

    def check_text(self, text: object, field: str) -> int:
        """Check a text that is to be tokenized; return its length in bytes.

        Raises:
            RequestError: `PROMPT_TOO_LONG`: it has more than `max_bytes`; `BAD_PARAMETER`: it is
                no text that UTF-8 can encode.
        """
        return self._check_bytes(text, field)

    def _check_bytes(self, text: object, field: str, why: str = "") -> int:
        # Not even the bytes of a text that is much too long are counted.
        is_long = isinstance(text, str) and len(text) > self.max_bytes
        num_bytes = 0 if is_long else checks.utf8_len(text, field)
        if is_long or num_bytes > self.max_bytes:
            message = f"{field}: {why}expected at most {self.max_bytes} bytes of text, got more"
            raise RequestError(Reason.PROMPT_TOO_LONG, message, field=field)
        return num_bytes

    def check_prompt(self, text: str, field: str, num_answer: int = 1) -> None:
        """Check a text that is to become a whole prompt; `num_answer` as of `check_length`.

        Raises:
            RequestError: See `check_text` and `check_length`.
        """
        num_bytes = self._check_bytes(text, field, self._context())
        if self.longest_token_bytes is not None:
            self.check_length(-(-num_bytes // self.longest_token_bytes), "at least ", num_answer)

    def check_chat(self, chat: Chat) -> None:
        """Check a conversation that is to be rendered.

        Raises:
            RequestError: `BAD_PARAMETER`: it has too many messages; `PROMPT_TOO_LONG`: its
                messages, tools and arguments have more than `max_bytes` characters.
        """
        checks.check_count(chat.messages, "chat.messages", MAX_MESSAGES)
        num_characters = 0
        for i, message in enumerate(chat.messages):
            content: object = message.content
            if not isinstance(content, str):
                field = f"chat.messages[{i}].content"
                raise checks.bad(field, "text", content)
            num_characters += len(content)
        num_characters += _num_further_characters(chat, self.max_bytes)
        if num_characters > self.max_bytes:
            expected = f"expected at most {self.max_bytes} bytes of text, got more"
            text = f"chat.messages: {self._context()}{expected}"
            raise RequestError(Reason.PROMPT_TOO_LONG, text, field="chat.messages")

    def check_length(self, num_tokens: int, number_prefix: str = "", num_answer: int = 1) -> None:
        """Check the length of a prompt.

        Args:
            num_tokens: Tokens of the prompt.
            number_prefix: Goes before a number that may be too small.
            num_answer: Tokens of the answer that the context has to hold: 0 where only the prompt
                counts, since the one token behind it is never computed.

        Raises:
            RequestError: `PROMPT_TOO_LONG` or `KV_CAPACITY` in `prompt`.
        """
        for context, reason, where in (
            (self.max_model_len, Reason.PROMPT_TOO_LONG, ""),
            (self.max_context_len, Reason.KV_CAPACITY, " in this server's KV cache"),
        ):
            max_num = context - num_answer
            if num_tokens > max_num:
                answer = ", since the answer needs one" if num_answer else ""
                message = (
                    f"prompt: {context_words(context, where)}expected at most {max_num} tokens"
                    f"{answer}, got {number_prefix}{num_tokens}"
                )
                raise RequestError(reason, message, field="prompt")

    def in_context(self, error: RequestError) -> RequestError:
        """Return an error of a prompt, one that is too long with the words of `context_words`."""
        words, start = self._context(), f"{error.field}: "
        if error.reason is not Reason.PROMPT_TOO_LONG or words in error.message:
            return error
        message = start + words + error.message.removeprefix(start)
        return RequestError(error.reason, message, field=error.field)

    def _context(self) -> str:
        return context_words(self.max_context_len)


def caller(tenant: str, connection: str) -> Hashable:
    """Return what takes turns: a tenant, or a connection of callers without one."""
    return (tenant, "" if tenant else connection)


class TextQueue:
    """Runs bounded pieces of work off the event loop; all methods are called on it."""

    def __init__(self, timeout_s: float, num_threads: int | None = None) -> None:
        """Start no thread yet.

        Args:
            timeout_s: The longest wait for a thread, in seconds.
            num_threads: Pieces of work at a time; None is 2 to 4, by the number of cores.
        """
        self._timeout_s = timeout_s
        self._num_free = num_threads or min(max(available_cores() // 2, 2), 4)
        self._max_per_tenant = max(self._num_free // 2, 1)
        self._threads = ThreadPoolExecutor(self._num_free, thread_name_prefix="chairlift-text")
        self._running: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Waiters by tenant; the first tenant in the dictionary is served next."""
        self._num_bytes: dict[Hashable, int] = {}
        """Bytes of the texts that wait, by tenant."""
        self._interruptions: set[Interruption] = set()
        """Interruptions of the work that runs."""

    async def run(
        self, work: Callable[[], _T], *, tenant: Hashable, size: int, within_s: float | None = None
    ) -> _T:
        """Run work on a thread.

        Args:
            work: What it raises is raised here.
            tenant: That the work is for: its name, or what `caller` returns.
            size: Bytes that the work keeps in memory while it waits.
            within_s: The longest wait in seconds where it is less than that of the queue.

        Raises:
            RequestError: `QUOTA_EXCEEDED` or `QUEUE_FULL`: too much text of the tenant, or of all
                tenants, waits already;
                `QUEUE_TIMEOUT`: no thread was free in time; `DRAINING`: after `close`.
        """
        limit_s = self._timeout_s if within_s is None else min(within_s, self._timeout_s)
        await self._acquire(tenant, size + _FIXED_BYTES, limit_s)
        loop = asyncio.get_running_loop()
        interruption = Interruption()
        try:
            future = self._threads.submit(interruption.run, work)
        except RuntimeError:
            self._release(tenant)
            raise refusal(Reason.DRAINING) from None

        def ended(_: Future[_T]) -> None:
            with suppress(RuntimeError):  # The event loop is closed.
                loop.call_soon_threadsafe(self._release, tenant)

        # The thread is free when the work has ended, even if the caller was cancelled before.
        future.add_done_callback(ended)
        self._interruptions.add(interruption)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            interruption.interrupt()
            raise
        finally:
            self._interruptions.discard(interruption)

    def close(self) -> None:
        """Refuse what waits and what comes; what runs is interrupted, or ends by itself."""
        self._threads.shutdown(wait=False)
        for interruption in self._interruptions:
            interruption.interrupt()
        for queue in self._waiting.values():
            for waiter in queue:
                if not waiter.done():
                    waiter.set_exception(refusal(Reason.DRAINING))

    async def _acquire(self, tenant: Hashable, size: int, timeout_s: float) -> None:
        """Wait for a thread."""
        if not self._waiting.get(tenant) and self._may_run(tenant):
            self._start(tenant)
            return
        self._check_room(tenant, size)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(tenant, deque())
        queue.append(waiter)
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + size
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            self._drop_waiter(waiter, tenant)
            message = f"the text was not tokenized within {timeout_s:.3g} s"
            raise RequestError(Reason.QUEUE_TIMEOUT, message, retry_after_s=_RETRY_S) from None
        except asyncio.CancelledError:
            self._drop_waiter(waiter, tenant)
            raise
        finally:
            self._num_bytes[tenant] -= size
            if not self._num_bytes[tenant]:
                del self._num_bytes[tenant]
            with suppress(ValueError):
                queue.remove(waiter)
            if not queue and self._waiting.get(tenant) is queue:
                del self._waiting[tenant]

    def _drop_waiter(self, waiter: "asyncio.Future[None]", tenant: Hashable) -> None:
        """Release a thread that was assigned to a waiter just when its wait ended."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._release(tenant)

    def _check_room(self, tenant: Hashable, size: int) -> None:
        num_bytes, total = self._num_bytes.get(tenant, 0), sum(self._num_bytes.values())
        if num_bytes and num_bytes + size > MAX_TENANT_WAITING_BYTES:
            message = f"quota: {num_bytes} bytes of text wait to be tokenized already"
            raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=_RETRY_S)
        if total and total + size > MAX_WAITING_BYTES:
            message = f"{total} bytes of text wait to be tokenized already"
            raise RequestError(Reason.QUEUE_FULL, message, retry_after_s=_RETRY_S)

    def _may_run(self, tenant: Hashable) -> bool:
        return self._num_free > 0 and self._running.get(tenant, 0) < self._max_per_tenant

    def _start(self, tenant: Hashable) -> None:
        self._num_free -= 1
        self._running[tenant] = self._running.get(tenant, 0) + 1

    def _release(self, tenant: Hashable) -> None:
        """Free a thread, and give it to the next tenant that may have one."""
        self._num_free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        for following in list(self._waiting):
            queue = self._waiting[following]
            while queue and queue[0].done():
                queue.popleft()
            if queue and self._may_run(following):
                queue.popleft().set_result(None)
                self._start(following)
                self._waiting[following] = self._waiting.pop(following)


def is_short(request: Request) -> bool:
    """Return whether preparing takes no time; a value that is no prompt is refused at once."""
    prompt: object = getattr(request, "prompt", None)
    if isinstance(prompt, Chat) or isinstance(_first(prompt), Mapping):
        return False
    sampling, stopping = getattr(request, "sampling", None), getattr(request, "stopping", None)
    if getattr(stopping, "stop_regex", ()) or getattr(sampling, "bad_words", ()):
        # Patterns are compiled, and words encoded.
        return False
    lists = (
        getattr(sampling, "allowed_token_ids", ()),
        getattr(sampling, "banned_token_ids", ()),
        getattr(stopping, "stop_token_ids", ()),
    )
    if sum(len(ids) for ids in lists if isinstance(ids, Sized)) >= _SHORT_IDS:
        return False
    max_num = _SHORT_TEXT if isinstance(prompt, str) else _SHORT_IDS
    return not isinstance(prompt, Sized) or len(prompt) < max_num


def _first(prompt: object) -> object:
    return next(iter(prompt), None) if checks.is_list(prompt) else None


def size_of(request: Request, limit: int = MAX_WAITING_BYTES) -> int:
    """Return about how many bytes a request takes in memory while it waits; nothing is checked.

    Args:
        request: What the client wrote.
        limit: Characters of a conversation and of a constraint behind which their walk ends.
    """
    of_constraint = _core.value_size(request.constraint, limit)[1]
    allowed: object = request.sampling.allowed_token_ids
    of_ids = _BYTES_PER_ID * len(allowed) if isinstance(allowed, Sized) else 0
    return _prompt_size(request.prompt, limit) + of_constraint + of_ids


def _prompt_size(prompt: object, limit: int) -> int:
    if isinstance(prompt, Chat) or isinstance(_first(prompt), Mapping):
        return _core.value_size(prompt, limit)[1]
    if isinstance(prompt, str):
        return sys.getsizeof(prompt)
    return _BYTES_PER_ID * len(prompt) if isinstance(prompt, Sized) else 0


def _num_further_characters(chat: Chat, limit: int) -> int:
    """Return the size of what a conversation has besides the contents of its turns."""
    values: list[Any] = [message.reasoning for message in chat.messages]
    values += [call.arguments for message in chat.messages for call in message.tool_calls]
    values += [part for tool in chat.tools for part in (tool.description, tool.parameters)]
    found = [value for value in (*values, chat.template_arguments) if value]
    return _core.value_size(found, limit)[0]
