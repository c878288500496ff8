"""The training text: an endless, seeded stream of small documents."""

import random
from collections.abc import Callable, Iterator
from typing import Final

from tools.train_demo.conversations import Message, make_conversation
from tools.train_demo.lessons import counting, json_object, make_lesson
from tools.train_demo.stories import make_story, make_title
from tools.train_demo.verses import make_letter, make_poem

END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TURN: Final = "<|end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, "<|system|>", "<|user|>", "<|assistant|>", END_OF_TURN)

# A role without a special token of its own is refused rather than written as plain text: the
# model has never seen it.
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('expected role system, user or assistant, got ' ~ message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def render(messages: list[Message]) -> str:
    """Return a conversation as text, just as the chat template does."""
    return "".join(f"<|{m['role']}|>{m['content']}{END_OF_TURN}" for m in messages)


def make_document(rng: random.Random) -> str:
    """Return one document, without the end token."""
    return rng.choices(list(_KINDS), weights=list(_KINDS.values()))[0](rng)


def documents(seed: int) -> Iterator[str]:
    """Yield documents without end; the same seed yields the same ones."""
    rng = random.Random(seed)
    while True:
        yield make_document(rng)


def _conversation(rng: random.Random) -> str:
    return render(make_conversation(rng))


def _story(rng: random.Random) -> str:
    told = make_story(rng, short=rng.random() < 0.15)
    return f"{make_title(told)}\n\n{told.text}" if rng.random() < 0.15 else told.text


def _counting(rng: random.Random) -> str:
    lesson = counting(rng)
    return f"{lesson.question.rstrip('?.')}: {lesson.answer}"


def _json(rng: random.Random) -> str:
    lesson = json_object(rng)
    return rng.choice((lesson.answer, f"{lesson.question.rstrip('.')}:\n{lesson.answer}"))


def _sentences(rng: random.Random) -> str:
    lessons = [make_lesson(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        return "\n".join(f"Q: {lesson.question}\nA: {lesson.answer}" for lesson in lessons)
    if rng.random() < 0.5:
        return f"{lessons[0].question} {lessons[0].answer}"
    return lessons[0].answer


_KINDS: dict[Callable[[random.Random], str], float] = {
    _conversation: 62,
    _story: 17,
    _sentences: 10,
    _counting: 4,
    _json: 3,
    make_poem: 2,
    make_letter: 2,
}
