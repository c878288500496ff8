"""Stories with a beginning, a plot and an end."""

import random
from dataclasses import dataclass

from tools.train_demo.plots import FEARS, GOALS, MADE, PLOTS
from tools.train_demo.templates import article, capitalize, expand
from tools.train_demo.words import (
    FOODS,
    HOMES,
    PLACES,
    SPOTS,
    THINGS,
    WEATHERS,
    Hero,
    make_hero,
)

_OPENINGS = (
    "Once upon a time there was {a_kind} [called|named] {N}. {N} lived {home}.",
    "Once upon a time, {home}, there lived {a_kind} [called|named] {N}.",
    "Once upon a time, {a_kind} [called|named] {N} lived {home}.",
    "Once there was {a_kind} whose name was {N}. {He} lived {home}.",
    "Long ago, {home}, there was {a_kind} [called|named] {N}.",
    "{N} was {a_kind} who lived {home}.",
    "There was once {a_kind} [called|named] {N}, who lived {home}.",
    "{Home} lived {a_kind}. {His} name was {N}.",
)
_THE_OPENINGS = (
    "The {adj} {kind} was called {N}. {He} lived {home}.",
    "The {adj} {kind} lived {home}. {His} name was {N}.",
    "The {adj} {kind} woke up early, because it was a {weather} day. {His} name was {N}.",
    "The {adj} {kind} loved to walk to {place}. Everyone called {him} {N}.",
)
_SHORT_PLOTS = (
    "One {weather} day, {he} found a {thing} near {spot}. {He} gave it back to {F} the {friend},"
    " who had lost it. {F} was so happy that they became friends.",
    "{N} wanted to see {goal}, but it was far away. So {he} walked and walked with {F} the"
    " {friend}, and after three days they were there. It was wonderful.",
    "One night {he} heard a noise and was afraid. It was only {F} the {friend}, who was looking"
    " for {food}. They laughed and ate together.",
    "Every day {he} tried to build {made}, and every day it broke. Then {F} the {friend} helped,"
    " and it worked. Two can do more than one.",
    "{He} was hungry, and so was {F} the {friend}. They had only one bowl of soup, so they shared"
    " it. It was enough for both.",
    "On a {weather} morning, {he} met {F} the {friend} at {place}. They played until evening and"
    " went home tired and happy.",
)
_ENDINGS = ("The end.", "And they all lived happily ever after.", "Good night.")


@dataclass(frozen=True)
class Story:
    """A story and what it is about, so that a prompt can ask for just this one."""

    text: str
    hero: Hero
    friend: Hero
    theme: str


def make_story(
    rng: random.Random, *, hero: Hero | None = None, friend: Hero | None = None, short: bool = False
) -> Story:
    """Return a story: a full one of 80 to 200 tokens, or a short one of about 50."""
    hero = hero or make_hero(rng)
    friend = friend or _make_friend(rng, hero)
    slots = _draw_slots(rng, hero, friend)
    theme = rng.choice(list(PLOTS))
    # The kind alone is as common as "little fox": a prompt names the kind, with any adjective.
    a_kind = article(f"{hero.adjective} {hero.kind}" if rng.random() < 0.75 else hero.kind)
    openings = _THE_OPENINGS if rng.random() < 0.25 else _OPENINGS
    beats = [rng.choice(openings), *((rng.choice(_SHORT_PLOTS),) if short else PLOTS[theme])]
    told = [expand(rng, beat, a_kind=a_kind, **slots) for beat in beats]
    if rng.random() < 0.3:
        told.append(rng.choice(_ENDINGS))
    text = _in_paragraphs(rng, told) if not short and rng.random() < 0.5 else " ".join(told)
    return Story(text, hero, friend, theme.format_map(slots))


def make_title(story: Story) -> str:
    """Return a title such as "The Fox and the Lost Kite"."""
    return f"{story.hero.name} the {capitalize(story.hero.kind)}: {capitalize(story.theme)}"


def _make_friend(rng: random.Random, hero: Hero) -> Hero:
    while True:
        friend = make_hero(rng)
        if friend.name != hero.name and friend.kind != hero.kind:
            return friend


def _draw_slots(rng: random.Random, hero: Hero, friend: Hero) -> dict[str, str]:
    spot, spot2, spot3 = rng.sample(SPOTS, 3)
    place, place2 = rng.sample(PLACES, 2)
    food, food2 = rng.sample(FOODS, 2)
    home = rng.choice(HOMES)
    return {
        **hero.slots,
        "F": friend.name,
        "friend": friend.kind,
        "home": home,
        "Home": capitalize(home),
        "spot": spot,
        "spot2": spot2,
        "spot3": spot3,
        "place": place,
        "place2": place2,
        "food": food,
        "food2": food2,
        "thing": rng.choice(THINGS),
        "weather": rng.choice(WEATHERS),
        "fear": rng.choice(FEARS),
        "goal": rng.choice(GOALS),
        "made": rng.choice(MADE),
    }


def _in_paragraphs(rng: random.Random, told: list[str]) -> str:
    cut = rng.choice((1, 2))
    cut2 = rng.choice((3, 4))
    parts = (told[:cut], told[cut:cut2], told[cut2:])
    return "\n\n".join(" ".join(part) for part in parts)
