"""A template language of two rules: ``[a|b|c]`` picks one part, ``{name}`` fills a slot."""

import random
import re

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text: a table that reads like a sentence."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of a text, which stand between bars."""
    return tuple(text.split("|"))


_SYLLABLES = words(
    "ba be bi bo bra da del di dor fa fen fi flo ga gil go han ja jo ka kel ki kro la lin lo "
    "lu ma mel mi mo na nel ni no ola pa pel pi po ra rin ro sa sel shi so sta ta tel ti to tu "
    "va vel vi vo wen wi ya yo za zel zi zo"
)
_ENDINGS = phrases("n|l|r|x|s|m|k|nd|ck|th|")


def expand(rng: random.Random, template: str, **slots: object) -> str:
    """Return one text of a template: choices first, innermost first, then the slots."""
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template.format_map(slots) if slots else template


def article(noun: str) -> str:
    """Return the noun with "a" or "an" before it."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capitalize(text: str) -> str:
    """Return the text with its first letter in upper case and the rest untouched."""
    return text[:1].upper() + text[1:]


def join_words(words: list[str]) -> str:
    """Return "one", "one and two", or "one, two and three"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def coin_word(rng: random.Random) -> str:
    """Return a made-up word.

    Made-up words teach the model to copy a word from the prompt rather than to recognise it, so
    that a name it has never seen still comes back whole.
    """
    return "".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3)))) + rng.choice(_ENDINGS)


def casual(rng: random.Random, prompt: str) -> str:
    """Return the prompt as people really type it: often exact, at times without care."""
    draw = rng.random()
    if draw < 0.62:
        return prompt
    if draw < 0.78:
        return prompt.lower()
    if draw < 0.88:
        return prompt.rstrip("?.!")
    if draw < 0.95:
        return prompt.rstrip("?.!").lower()
    return f"{prompt.rstrip('?.!')} please{'?' if prompt.endswith('?') else '.'}"
