"""Chat templates that ask for more time, memory or text than there is."""

import asyncio
import shutil

from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.malformed import GENERATE_ONE, end_of
from tests.server.connection import start

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 10, Scale.LONG: 100}

ATTACKS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "product": "{{ 'a' * big }}",
    "power": "{{ (7 ** big) % 3 }}",
    "doubling": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ messages }}{% endfor %}",
    "width": "{{ '%*d' % (big, 1) }}",
    "list": "{{ range(99999) | list * big }}",
}
TEMPLATE = (
    "{% set big = 10 ** 10 %}{% set attack = attack | default('') %}"
    + "".join(f"{{% if attack == '{name}' %}}{text}{{% endif %}}" for name, text in ATTACKS.items())
    + "{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
)
REFUSED = {("INVALID_ARGUMENT", "BAD_PARAMETER"), ("INVALID_ARGUMENT", "PROMPT_TOO_LONG")}


async def run(scale, lab):
    folder = lab.scratch / "hostile"
    if not folder.exists():
        shutil.copytree(lab.folder, folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    server = await lab.server(folder=str(folder), **PACED)
    before = await server.inside("figures")

    async def attack():
        async with server.channel() as channel:
            for i in range(ROUNDS[scale]):
                arguments = [{"attack": name} for name in ATTACKS]
                # Once the name of a special token, of which a template writes one for each turn.
                arguments.append({"eos_token": "a" * 500_000})
                await asyncio.gather(*(render(channel, one, REFUSED) for one in arguments))
                await render(channel, {}, {("OK", "")})
                lab.progress(f"hostile templates: {i} rounds")

    good = await beside_one(lab, server, attack())
    await server.until_idle()
    after = await server.inside("figures")
    return Figures(
        "hostile templates",
        f"{ROUNDS[scale]} x {len(ATTACKS) + 1} attacks",
        [
            "every one refused, and a chat after them answered",
            good,
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )


async def render(channel, arguments, expected):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", text="a lift")])
    chat.template_arguments.update(arguments)
    command = start("chat", prompt=chat, max_tokens=3)
    message = pb.GenerateOneRequest(start=command.start).SerializeToString()
    status = await end_of(channel.unary_stream(GENERATE_ONE)(message))
    assert status in expected, (arguments.keys(), status)
