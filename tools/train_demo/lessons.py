"""Short exercises: questions with one right answer, lists, counting and JSON."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.train_demo import facts
from tools.train_demo.explanations import DEFINITIONS, HABITS, HOW_TO, REASONS
from tools.train_demo.templates import article, capitalize, coin_word, expand, join_words
from tools.train_demo.words import (
    BOYS,
    FOODS,
    GIRLS,
    PLACES,
    SPOTS,
    THINGS,
    WEATHERS,
    pick_kind,
    pick_name,
)


@dataclass(frozen=True)
class Lesson:
    """A question and its answer; ``word`` is the answer in one word, where there is one."""

    question: str
    answer: str
    word: str = ""


def colour(rng: random.Random) -> Lesson:
    """Ask for the colour of a thing."""
    thing, value = rng.choice(list(facts.COLOURS.items()))
    question = expand(
        rng,
        "[What is the [colour|color] of {thing}?|What [colour|color] is {thing}?|"
        "Which [colour|color] does {thing} have?]",
        thing=thing,
    )
    if rng.random() < 0.25:
        guess = rng.choice(list(facts.COLOURS.values()))
        yes = guess == value
        verdict = f"Yes, {thing} is {value}." if yes else f"No, {thing} is {value}."
        return Lesson(f"Is {thing} {guess}?", verdict, "Yes" if yes else "No")
    return Lesson(question, f"{capitalize(thing)} is {value}.", capitalize(value))


def opposite(rng: random.Random) -> Lesson:
    """Ask for the opposite of a word."""
    first, second = rng.sample(rng.choice(facts.OPPOSITE_PAIRS), 2)
    question = expand(
        rng, "[What is the opposite of|What's the opposite of|Opposite of] {word}?", word=first
    )
    return Lesson(question, f"The opposite of {first} is {second}.", capitalize(second))


def animal(rng: random.Random) -> Lesson:
    """Ask for one fact of an animal."""
    kind, row = rng.choice(list(facts.ANIMAL_FACTS.items()))
    sound, legs, home, food, young, skill, group = row
    a_kind = article(kind)
    number = "no" if legs == 0 else str(legs)
    options = [
        Lesson(f"How many legs does {a_kind} have?",
               f"{capitalize(a_kind)} has {number} legs.", str(legs)),
        Lesson(f"Where does {a_kind} live?", f"{capitalize(a_kind)} lives {home}."),
        Lesson(f"What does {a_kind} eat?", f"{capitalize(a_kind)} eats {food}.",
               capitalize(food.split()[0]) if " " not in food else ""),
        Lesson(f"What is a baby {kind} called?", f"A baby {kind} is called {article(young)}.",
               capitalize(young)),
        Lesson(f"What can {a_kind} do?", f"{capitalize(a_kind)} can {skill}."),
        Lesson(f"Is {a_kind} a bird?", f"Yes, {a_kind} is a bird." if group == "bird"
               else f"No, {a_kind} is {article(group)}.", "Yes" if group == "bird" else "No"),
        Lesson(f"What kind of animal is {a_kind}?", f"{capitalize(a_kind)} is {article(group)}.",
               capitalize(group)),
    ]  # fmt: skip
    if sound != "nothing":
        asked = rng.choice((f"What does {a_kind} say?", f"What sound does {a_kind} make?"))
        says = f'{capitalize(a_kind)} says "{sound}".'
        options += [Lesson(asked, says, capitalize(sound))] * 2
    return rng.choice(options)


def animal_portrait(rng: random.Random) -> Lesson:
    """Ask for all that the table knows of an animal."""
    kind, (_, legs, home, food, young, skill, group) = rng.choice(list(facts.ANIMAL_FACTS.items()))
    a_kind = article(kind)
    has_legs = f"It has {legs or 'no'} legs and" if rng.random() < 0.7 else "It"
    answer = (
        f"{capitalize(a_kind)} is {article(group)}. {has_legs} lives {home}."
        f" It eats {food}, and it can {skill}. A baby {kind} is called {article(young)}."
    )
    asked = expand(
        rng, "[Tell me about|What do you know about|Describe] {x}.", x=rng.choice((a_kind, kind))
    )
    return Lesson(asked, answer)


def capital(rng: random.Random) -> Lesson:
    """Ask for a capital, or for the country of one."""
    country, city = rng.choice(list(facts.CAPITALS.items()))
    if rng.random() < 0.2:
        return Lesson(f"Where is {city}?", f"{city} is in {country}.", country)
    question = expand(
        rng, "[What is|What's|Do you know] the capital of {country}?", country=country
    )
    return Lesson(question, f"The capital of {country} is {city}.", city)


def fact(rng: random.Random) -> Lesson:
    """Ask for a fact of the small table."""
    question, word, sentence = rng.choice(facts.FACTS)
    return Lesson(question, sentence, word)


def definition(rng: random.Random) -> Lesson:
    """Ask what a thing is."""
    thing, answer = rng.choice(list(DEFINITIONS.items()))
    asked = "[What is {x}?|What's {x}?|What does {x} mean?|Explain {x}.|Can you explain {x}?]"
    return Lesson(expand(rng, asked, x=thing), answer)


def reason(rng: random.Random) -> Lesson:
    """Ask why."""
    if rng.random() < 0.5:
        asked, answer = rng.choice(list(REASONS.items()))
        return Lesson(f"Why is {asked}?", answer)
    asked, answer = rng.choice(list(HABITS.items()))
    return Lesson(f"Why do {asked}?", answer)


def how_to(rng: random.Random) -> Lesson:
    """Ask for the steps of a task."""
    task, steps = rng.choice(list(HOW_TO.items()))
    asked = "[How do I {x}?|How can I {x}?|How do you {x}?|Tell me how to {x}.|Steps to {x}?]"
    lines = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    return Lesson(expand(rng, asked, x=task), "\n".join(lines))


def arithmetic(rng: random.Random) -> Lesson:
    """Ask for a sum, a difference or a product of small numbers."""
    limit = rng.choice((5, 10, 10, 20))
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    sign = rng.choice("++-*")
    if sign == "-":
        a, b = max(a, b), min(a, b)
    if sign == "*":
        a, b = a % 11, b % 11
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    asked = expand(
        rng,
        "[What is {a} {s} {b}?|What is {a} {w} {b}?|{a} {s} {b} =|How much is {a} {w} {b}?|"
        "Calculate {a} {s} {b}.]",
        a=a, b=b, s=sign, w=word,
    )  # fmt: skip
    return Lesson(asked, f"{a} {sign} {b} = {value}.", str(value))


def comparison(rng: random.Random) -> Lesson:
    """Ask for the neighbour of a number, or for the bigger of two."""
    a, b = rng.sample(range(100), 2)
    return rng.choice(
        (
            Lesson(f"What number comes after {a}?", f"{a + 1} comes after {a}.", str(a + 1)),
            Lesson(f"What number comes before {a + 1}?", f"{a} comes before {a + 1}.", str(a)),
            Lesson(f"Which is bigger, {a} or {b}?",
                   f"{max(a, b)} is bigger than {min(a, b)}.", str(max(a, b))),
            Lesson(f"Is {a} an even number?",
                   f"Yes, {a} is even." if a % 2 == 0 else f"No, {a} is odd.",
                   "No" if a % 2 else "Yes"),
        )
    )  # fmt: skip


def counting(rng: random.Random) -> Lesson:
    """Ask to count up or down, at times in steps."""
    low = rng.choice((1, 1, 2, 3, rng.randint(0, 10), rng.randint(0, 90)))
    step = rng.choice((1, 1, 1, 1, 2, 5, 10))
    if step > 1:
        low = rng.choice((0, step))
    high = low + step * rng.choice((4, 5, 6, 7, 9, 9, rng.randint(3, 20 if step == 1 else 10)))
    numbers = list(range(low, high + 1, step))
    by = f" by {step}s" if step > 1 else ""
    if step == 1 and rng.random() < 0.3:
        numbers.reverse()
        asked = f"Count down from {high} to {low}."
    elif low <= 1 and step == 1 and rng.random() < 0.4:
        numbers = numbers[1:] if low == 0 else numbers
        asked = f"Count to {high}."
    else:
        asked = expand(
            rng, "[Count|Please count|Can you count|Count for me] from {a} to {b}{by}.",
            a=low, b=high, by=by,
        )  # fmt: skip
        if asked.startswith("Can"):
            asked = asked[:-1] + "?"
    return Lesson(asked, ", ".join(map(str, numbers)) + ".")


def naming(rng: random.Random) -> Lesson:
    """Ask for some things of a kind."""
    category = rng.choice(list(facts.CATEGORIES))
    words = facts.CATEGORIES[category].split()
    count = rng.randint(2, 6)
    number = rng.choice((str(count), ["two", "three", "four", "five", "six"][count - 2]))
    chosen = rng.sample(words, count)
    asked = expand(rng, "[Name|List|Tell me|Give me] {n} {c}.", n=number, c=category)
    if rng.random() < 0.4:
        bullet = rng.choice(("- ", "", ""))
        lines = [f"{bullet or f'{i}. '}{w}" for i, w in enumerate(chosen, start=1)]
        return Lesson(asked.replace("Tell me", "List"), "\n".join(lines))
    return Lesson(asked, capitalize(join_words(chosen)) + ".")


def translation(rng: random.Random) -> Lesson:
    """Ask for a word in another language."""
    language, words = rng.choice(list(facts.LANGUAGES.items()))
    index = rng.randrange(len(words))
    english, foreign = facts.LANGUAGE_WORDS[index], words[index]
    asked = expand(
        rng,
        '[How do you say "{e}" in {l}?|How do you say {e} in {l}?|Say {e} in {l}.|'
        "Translate {e} to {l}.|What is {e} in {l}?]",
        e=english, l=language,
    )  # fmt: skip
    answer = expand(rng, '[{f}|"{e}" in {l} is "{f}".]', f=foreign, e=capitalize(english),
                    l=language)  # fmt: skip
    return Lesson(asked, answer, foreign)


def emoji(rng: random.Random) -> Lesson:
    """Ask for an emoji."""
    thing, sign = rng.choice(list(facts.EMOJI.items()))
    asked = expand(rng, "[Show me|Send me|Give me|Draw] {x}[| as an emoji].", x=thing)
    return Lesson(asked, sign, sign)


def repetition(rng: random.Random) -> Lesson:
    """Ask to say a word or a name again, once or several times."""
    word = rng.choice((coin_word(rng), rng.choice(GIRLS + BOYS), "hello", "ping", "banana", "yes"))
    if rng.random() < 0.5:
        return Lesson(f"Say {word}.", capitalize(word) + ".", capitalize(word))
    count = rng.randint(2, 6)
    return Lesson(f"Say {word} {count} times.", " ".join([word] * count) + ".")


def json_object(rng: random.Random) -> Lesson:
    """Ask for a small JSON object."""
    name = pick_name(rng, rng.choice(("she", "he")), child=True)
    age = rng.randint(3, 80)
    city = rng.choice(list(facts.CAPITALS.values()))
    liked = rng.choice(("red", "blue", "green", "yellow", "black", "white", "orange"))
    fields: dict[str, tuple[str, object]] = {
        "name": ("a name", name),
        "age": ("an age", age),
        "city": ("a city", city),
        "colour": ("a colour", liked),
        "pet": ("a pet", rng.choice(("cat", "dog", "rabbit", "horse", "mouse", "owl"))),
        "student": ("a student flag", rng.random() < 0.5),
        "fruits": ("a list of fruits", rng.sample(facts.CATEGORIES["fruits"].split(), 3)),
    }
    keys = ["name", "age"] if rng.random() < 0.35 else rng.sample(list(fields), rng.randint(1, 4))
    value = {key: fields[key][1] for key in keys}
    text = json.dumps(value, indent=2 if rng.random() < 0.25 else None)
    if {"name", "age", "city"} == set(keys) or rng.random() < 0.2:
        value = {"name": name, "age": age, "city": city}
        told = f"{name} is {age} years old and lives in {city}."
        asked = expand(rng, "[Write this as JSON|Turn this into JSON]: {t}", t=told)
        return Lesson(asked, json.dumps(value))
    wanted = join_words([rng.choice((fields[key][0], key)) for key in keys])
    asked = expand(
        rng,
        "[Write a JSON object with|Give me a JSON object with|Make a JSON object with|JSON with|"
        "Write JSON with] {w}.",
        w=wanted,
    )
    return Lesson(asked, text)


def sentence(rng: random.Random) -> Lesson:
    """Ask for one sentence about a person."""
    kind = pick_kind(rng) if rng.random() < 0.9 else coin_word(rng)
    asked = expand(rng, "[Write a|Make a|Give me a|Write one] sentence about {x}.",
                   x=article(kind))  # fmt: skip
    answer = expand(
        rng,
        "[The {k} [sat|slept|sang|waited|danced] near {spot}.|The {k} went to {place} on a {w}"
        " day.|Every morning the {k} looked for {food}.|There was a {w} day when the {k} stayed at"
        " home.|The {k} found a {thing} at {place}.]",
        k=kind, spot=rng.choice(SPOTS), place=rng.choice(PLACES), food=rng.choice(FOODS),
        thing=rng.choice(THINGS), w=rng.choice(WEATHERS),
    )  # fmt: skip
    return Lesson(asked, answer)


KINDS: dict[Callable[[random.Random], Lesson], float] = {
    colour: 3, opposite: 3, animal: 5, animal_portrait: 3, capital: 4, fact: 4, definition: 4,
    reason: 3, how_to: 3, arithmetic: 6, comparison: 2, counting: 7, naming: 3, translation: 3,
    emoji: 1, repetition: 2, json_object: 6, sentence: 3,
}  # fmt: skip


def make_lesson(rng: random.Random) -> Lesson:
    """Return a lesson of any kind."""
    return rng.choices(list(KINDS), weights=list(KINDS.values()))[0](rng)
