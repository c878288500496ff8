"""Small poems and letters."""

import random

from tools.train_demo.templates import capitalize, expand, phrases
from tools.train_demo.words import FOODS, PLACES, THINGS, WEATHERS, make_hero

SUBJECTS = phrases(
    "the sea|the moon|the sun|the wind|the rain|the snow|a star|a cat|a dog|a bird|a tree|a river|"
    "the night|spring|winter|summer|autumn|a flower|a boat|the mountain|a train|a friend|a cloud|"
    "a robot|a bee|a candle|the forest|a fox|home|a dragon"
)
_COUPLETS = (
    "I saw {s} at break of day,\nIt smiled at me and went its way.",
    "Oh, {s}, so soft and bright,\nYou keep me company at night.",
    "I sing of {s}, I sing it low,\nIt is the dearest thing I know.",
    "When I am sad, when I am blue,\nI think of {s}, I think of you.",
    "The world is wide, the hours fly,\nBut {s} goes slowly by.",
    "Come, take my hand, and come with me,\nFor {s} is there for all to see.",
    'I asked {s}, "Where do you go?"\nIt only laughed and answered, "No."',
    "The morning comes, the birds all sing,\nAnd {s} is in everything.",
    "So still, so near, so far away,\nI thought of {s} the whole long day.",
    "And when the evening bells have rung,\nThe song of {s} is softly sung.",
    "A little dream, a little tune,\nFor {s}, beneath a silver moon.",
    "Let others talk of gold and fame,\nI softly say {s}'s gentle name.",
)
_LETTER = (
    "Dear {N},\n\n[How are you?|I hope you are well.|Thank you for your letter.] "
    "[Here it is {weather} today.|The weather is {weather} here.] "
    "[Yesterday I went to {place} with {F}.|Last week {F} and I walked to {place}.] "
    "[We found a {thing} and laughed a lot.|We ate {food} and talked until evening.] "
    "[I wish you had been there.|Next time you must come with us.|I thought of you all day.]\n\n"
    "[Please write soon.|Come and see me in the summer.|Give my love to everyone.]\n\n"
    "[Your friend|Yours|With love],\n{G}"
)


def make_poem(rng: random.Random, subject: str | None = None) -> str:
    """Return a rhymed poem of four to eight lines."""
    subject = subject or rng.choice(SUBJECTS)
    couplets = rng.sample(_COUPLETS, rng.choice((2, 2, 3, 4)))
    return "\n".join(capitalize(couplet.format(s=subject)) for couplet in couplets)


def make_letter(rng: random.Random, name: str | None = None) -> str:
    """Return a letter to a friend."""
    return expand(
        rng,
        _LETTER,
        N=name or make_hero(rng, "girl").name,
        F=make_hero(rng, "boy").name,
        G=make_hero(rng, rng.choice(("girl", "boy"))).name,
        weather=rng.choice(WEATHERS),
        place=rng.choice(PLACES),
        thing=rng.choice(THINGS),
        food=rng.choice(FOODS),
    )
