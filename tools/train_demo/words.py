"""The words that the stories and lessons are made of."""

import random
from dataclasses import dataclass

from tools.train_demo.templates import coin_word, phrases, words

GIRLS = words(
    "Mia Lena Anna Zoe Ella Nora Ruby Ivy Clara Maya Lucy Rosa Ada Grace Lily Emma Sofia Alice "
    "Hana Tilda Olga Priya Amara Greta Wendy"
)
BOYS = words(
    "Tom Ben Max Leo Sam Jack Oscar Finn Theo Hugo Noah Eli Omar Ravi Karl Paul Peter Adam Felix "
    "Otto Milo Jonas Kofi Luca Henry"
)
PET_NAMES = words(
    "Pip Momo Tiny Dot Biscuit Pepper Hazel Bramble Olive Sunny Pebble Nutmeg Clover Button "
    "Maple Juniper Fig Poppy Socks Waffles Ginger Toby Luna Daisy Acorn"
)

CHILDREN = ("girl", "boy")
ANIMALS = words(
    "fox rabbit bear mouse owl frog cat dog duck hen horse cow pig sheep goat lion tiger elephant "
    "monkey penguin whale turtle snail bee squirrel hedgehog wolf deer otter badger crow sparrow "
    "swan camel giraffe zebra dolphin crab octopus ant bat beaver donkey kangaroo koala seal"
)
CREATURES = words(
    "dragon robot wizard witch giant ghost unicorn fairy mermaid knight princess prince king queen "
    "pirate monster troll elf astronaut alien dinosaur snowman baker farmer sailor gardener"
)
OBJECTS = words(
    "boat train cloud star kite lamp teapot tree leaf clock raindrop balloon bicycle moon "
    "snowflake chairlift toy candle tractor lighthouse"
)

ADJECTIVES = words(
    "little small young tiny clever brave quiet kind curious shy cheerful gentle lonely friendly "
    "sleepy old happy playful"
)

PLACES = phrases(
    "the forest|the old forest|the river|the garden|the hill|the market|the beach|the lake|"
    "the meadow|the park|the farm|the mountain|the valley|the old mill|the harbour|the castle|"
    "the library|the bridge|the orchard|the school|the cave|the field of flowers|the snowy hill|"
    "the village square|the island|the pond|the lighthouse|the green wood"
)
HOMES = phrases(
    "in a small village|near a quiet lake|at the edge of a forest|in a house on a hill|"
    "in a tall tree|by the sea|under an old bridge|in a little town|beside a river|on a farm|"
    "in a valley between two mountains|in a cosy cave|in a garden full of flowers|"
    "on a small island|behind the old mill"
)
THINGS = phrases(
    "red ball|blue kite|silver key|golden ring|wooden boat|warm scarf|green hat|shiny bell|"
    "little drum|yellow umbrella|picture book|toy train|glass marble|brown boot|lantern|"
    "magic stone|small flute|paper crown|soft blanket|map|compass|pocket watch|jar of honey|"
    "purple feather|tiny music box"
)
SPOTS = phrases(
    "a big rock|the old oak tree|a pile of leaves|a bush|the wooden bench|a hollow log|the gate|"
    "the well|a fallen branch|the tall grass|the stone wall|an empty basket|the little shed"
)
FOODS = phrases(
    "bread|apple pie|honey|a red apple|soup|pancakes|berries|cheese|nuts|a cake|plums|carrots|"
    "warm milk|cookies|porridge"
)
WEATHERS = words("sunny bright windy cold rainy snowy warm quiet foggy cloudy grey fine")

PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her"},
    "he": {"he": "he", "him": "him", "his": "his", "He": "He", "His": "His"},
}
_FEMALE = frozenset(words("girl witch fairy mermaid princess queen"))
_MALE = frozenset(words("boy wizard prince king knight"))


@dataclass(frozen=True)
class Hero:
    """Somebody a story is about."""

    name: str
    kind: str
    adjective: str
    pronoun: str

    @property
    def slots(self) -> dict[str, str]:
        """The template slots that speak of this hero."""
        return {
            "N": self.name,
            "kind": self.kind,
            "adj": self.adjective,
            **PRONOUNS[self.pronoun],
        }


def pick_kind(rng: random.Random) -> str:
    """Return a kind of hero: often an animal, at times a child, a creature or a thing."""
    group = rng.choices((ANIMALS, CREATURES, CHILDREN, OBJECTS), weights=(10, 7, 4, 3))[0]
    return rng.choice(group)


def pick_name(rng: random.Random, pronoun: str, *, child: bool) -> str:
    """Return a first name, one in ten of them made up."""
    if rng.random() < 0.1:
        return coin_word(rng).capitalize()
    people = GIRLS if pronoun == "she" else BOYS
    return rng.choice(people if child else people + PET_NAMES)


def make_hero(rng: random.Random, kind: str | None = None, name: str | None = None) -> Hero:
    """Return a hero, of the given kind and name or of drawn ones."""
    kind = kind or pick_kind(rng)
    pronoun = "she" if kind in _FEMALE else "he" if kind in _MALE else rng.choice(("she", "he"))
    return Hero(
        name=name or pick_name(rng, pronoun, child=kind in CHILDREN),
        kind=kind,
        adjective=rng.choice(ADJECTIVES),
        pronoun=pronoun,
    )
