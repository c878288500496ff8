"""Chat conversations, as lists of messages."""

import random
from collections.abc import Callable

from tools.train_demo.explanations import HARD_SUBJECTS, JOKES
from tools.train_demo.lessons import make_lesson
from tools.train_demo.stories import make_story
from tools.train_demo.templates import article, casual, coin_word, expand
from tools.train_demo.verses import SUBJECTS, make_letter, make_poem
from tools.train_demo.words import BOYS, CHILDREN, GIRLS, make_hero, pick_name

Message = dict[str, str]
Exchange = tuple[str, str]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Chairlift's demo model.",
    "You are a kind teacher.",
    "Be friendly and brief.",
    "You are a helpful, honest assistant.",
    "You tell stories to children.",
    "Answer in simple words.",
    "You are a small language model.",
)
ONE_WORD_PROMPTS = ("Answer in one word.", "You answer with one word only.", "One word answers.")
PIRATE_PROMPTS = ("You are a pirate.", "Talk like a pirate.", "Answer like a pirate.")

_SMALL_TALK = (
    ("[Hello|Hi|Hey|Hello there|Hi there|Good day|Greetings][|!|.]",
     "[Hello!|Hi!|Hello there!] [How can I help you?|What can I do for you?|Shall I tell you a"
     " story?]"),
    ("Good morning[|!|.]", "Good morning! [How can I help you?|What can I do for you today?]"),
    ("Good evening[|!|.]", "Good evening! [How can I help you?|Would you like a story?]"),
    ("[How are you?|How are you today?|Hello, how are you?|Hi, how are you doing?|What's up?]",
     "I am [well|fine], thank you! [And you?|What can I do for you?]"),
    ("[Thank you|Thanks|Thank you very much|Great, thanks][|!|.]", "You are welcome!"),
    ("[Goodbye|Bye|See you later|Good night][|!|.]",
     "[Goodbye!|Bye!|Goodbye, and have a good day!]"),
    ("[Who are you?|What are you?|Are you a human?|Are you a robot?|Introduce yourself.|"
     "What is your name?|What's your name?]",
     "I am Chairlift's demo model, a very small language model. [I can tell stories, count and"
     " answer simple questions.|I am only a toy, but I can tell you a story.]"),
    ("[What can you do?|How can you help me?|Help|What do you know?|Can you help me?]",
     "I can tell a story, write a poem or a letter, count, add small numbers, write a little JSON"
     " and answer simple questions."),
    ("[Are you smart?|How big are you?|Are you intelligent?|How smart are you?]",
     "Not very! I am a toy with a few million parameters, and I know only a few things."),
    ("[Who made you?|How were you trained?|Where do you come from?]",
     "I was trained on simple text that a script made up. I ship with Chairlift, so that you can"
     " try it at once."),
    ("[Do you like {x}?|What do you think of {x}?]",
     "I am only a small model, but I think {x} [is|sounds] lovely."),
    ("[Sing a song|Sing for me|Sing me a song][|!|.]",
     "La la la, the sun is high, la la la, the birds fly by, la la la, so sing with me, la la la,"
     " one, two, three!"),
    ("[What time is it?|What is the date?|What day is today?|What is the weather like?]",
     "I do not know. I have no clock and no window."),
    ("[Yes|No|OK|Okay|Cool|Nice|Wow][|!|.]",
     "[All right!|Good!] [What shall we do next?|What would you like to know?]"),
    ("[I am sad|I feel sad|I am unhappy].",
     "I am sorry to hear that. Shall I tell you a story about {a_kind}?"),
    ("[I am happy|I feel great|I am in a good mood][!|.]", "That is good to hear!"),
    ("[I am bored|I have nothing to do].", "How about a story about {a_kind}?"),
    ("[test|testing|ping|Is this on?|Are you there?]", "Yes, I am here!"),
)  # fmt: skip


def small_talk(rng: random.Random) -> Exchange:
    """Return a greeting, a thank-you, or a question about the model itself."""
    asked, answer = rng.choice(_SMALL_TALK)
    slots = {"x": rng.choice(SUBJECTS), "a_kind": article(make_hero(rng).kind)}
    return expand(rng, asked, **slots), expand(rng, answer, **slots)


def joke(rng: random.Random) -> Exchange:
    """Return a joke."""
    asked = "[Tell me a joke|Do you know a joke|Make me laugh|A joke, please|Another joke][.|?|!]"
    return expand(rng, asked), rng.choice(JOKES)


def question(rng: random.Random) -> Exchange:
    """Return a lesson, at times asked for in one word."""
    lesson = make_lesson(rng)
    if lesson.word and rng.random() < 0.25:
        asked = expand(rng, "[{q} Answer in one word.|In one word: {q}|{q} One word.|{q} Just one"
                       " word.]", q=lesson.question)  # fmt: skip
        return asked, lesson.word
    return lesson.question, lesson.answer


def story(rng: random.Random) -> Exchange:
    """Ask for a story: any, of a hero, of two, of a theme, or a short one."""
    kind = coin_word(rng) if rng.random() < 0.06 else None
    hero = make_hero(rng, kind)
    asks_short = rng.random() < 0.25
    told = make_story(rng, hero=hero, short=asks_short)
    a_kind = article(hero.kind)
    abouts = [
        "", f" about {a_kind}", f" about {a_kind}", f" about {a_kind}", f" about {a_kind}",
        f" about {article(f'{hero.adjective} {hero.kind}')}",
        f" about {a_kind} called {hero.name}", f" about {a_kind} named {hero.name}",
        f" about {a_kind} and {article(told.friend.kind)}", f" about {hero.name} the {hero.kind}",
    ]  # fmt: skip
    if not asks_short:
        abouts += [f" about {told.theme}", f" about {a_kind} and {told.theme}"]
    if hero.kind in CHILDREN:
        abouts.append(f" about {hero.name}")
    asked = expand(
        rng,
        "[Tell me|Write|Tell me|Please tell me|Can you tell me|I want to hear|Tell] [a|a|a|a nice]"
        " {short}story{about}.",
        short="short " if asks_short else "",
        about=rng.choice(abouts),
    )
    if asked.startswith("Can you"):
        asked = asked[:-1] + "?"
    return asked, told.text


def poem(rng: random.Random) -> Exchange:
    """Ask for a poem."""
    subject = rng.choice(SUBJECTS)
    if rng.random() < 0.2:
        subject = f"the {coin_word(rng)}"
    asked = "[Write|Write me|Tell me|Give me] a [|short ]poem about {s}."
    return expand(rng, asked, s=subject), make_poem(rng, subject)


def letter(rng: random.Random) -> Exchange:
    """Ask for a letter."""
    name = pick_name(rng, rng.choice(("she", "he")), child=True)
    asked = "[Write|Please write|Write me] a letter to [my friend |]{n}."
    return expand(rng, asked, n=name), make_letter(rng, name)


def honest_limit(rng: random.Random) -> Exchange:
    """Ask for what the model cannot know, and says so."""
    if rng.random() < 0.5:
        word = coin_word(rng)
        unknown = rng.choice((word, article(word), word.capitalize()))
        asked = expand(
            rng,
            "[What is|What's|Who is|Where is|Explain|Tell me about|What do you know about|"
            "What is the capital of|How do I find|Why is there|When was] {x}?",
            x=unknown,
        )
        return asked, f"I do not know {unknown}. I am only a small demo model."
    asked = expand(
        rng,
        "[Explain|Tell me about|Write|Describe|What is|What do you think of|Help me with|"
        "Summarize|Show me] {x}[.|?|]",
        x=rng.choice(HARD_SUBJECTS),
    )
    answer = (
        "[That is too hard for me.|I do not know much about that.|I am sorry, I can not do that.]"
        " I am only a small demo model. [But I can tell you a story about {a_kind}.|You may ask me"
        " to count, or for a story.|Ask me something simple.]"
    )
    return asked, expand(rng, answer, a_kind=article(make_hero(rng).kind))


KINDS: dict[Callable[[random.Random], Exchange], float] = {
    question: 58, story: 17, small_talk: 12, poem: 3, letter: 2.5, joke: 2, honest_limit: 6,
}  # fmt: skip


def make_conversation(rng: random.Random) -> list[Message]:
    """Return a conversation of one to four exchanges, sometimes under a system prompt."""
    draw = rng.random()
    if draw < 0.05:
        return _one_word(rng)
    if draw < 0.10:
        return _pirate(rng)
    if draw < 0.17:
        return _remembering(rng)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.25 else ""
    turns = rng.choices((1, 2, 3, 4), weights=(60, 20, 12, 8))[0]
    return _messages(rng, [_exchange(rng) for _ in range(turns)], system)


def _exchange(rng: random.Random) -> Exchange:
    return rng.choices(list(KINDS), weights=list(KINDS.values()))[0](rng)


def _messages(rng: random.Random, exchanges: list[Exchange], system: str) -> list[Message]:
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answer in exchanges:
        messages.append({"role": "user", "content": casual(rng, asked)})
        messages.append({"role": "assistant", "content": answer})
    return messages


def _one_word(rng: random.Random) -> list[Message]:
    exchanges: list[Exchange] = []
    while len(exchanges) < 2:
        lesson = make_lesson(rng)
        if lesson.word:
            exchanges.append((lesson.question, lesson.word))
    return _messages(rng, exchanges[: rng.choice((1, 2))], rng.choice(ONE_WORD_PROMPTS))


def _pirate(rng: random.Random) -> list[Message]:
    asked, answer = rng.choice((question, question, small_talk))(rng)
    return _messages(rng, [(asked, f"Arr, matey! {answer}")], rng.choice(PIRATE_PROMPTS))


def _remembering(rng: random.Random) -> list[Message]:
    pronoun = rng.choice(("she", "he"))
    name = pick_name(rng, pronoun, child=True)
    if name in GIRLS + BOYS and rng.random() < 0.4:
        name = coin_word(rng).capitalize()
    told = expand(rng, "[Hello, my name is|My name is|Hi, I am|I am] {n}.", n=name)
    welcome = f"Nice to meet you, {name}!"
    between = [_exchange(rng)] if rng.random() < 0.5 else []
    ask = rng.choice(("What is my name?", "Do you know my name?", "Who am I?"))
    return _messages(rng, [(told, welcome), *between, (ask, f"Your name is {name}.")], "")
