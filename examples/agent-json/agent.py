"""Answer questions by calls of a function, in JSON; all questions share the batch.

Run `python agent.py [ADDRESS]`.
"""

import json
import sys
from typing import Any

from chairlift.api.types import Constraint
from chairlift.client import Client, Generation, connect

KILOMETRES = {"Bern": 94, "Basel": 178, "Chur": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "distance",
        "description": "Kilometres from Chur to a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": [*KILOMETRES]}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "town": {"enum": [*KILOMETRES]},
        "kilometres": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["town", "kilometres"],
    "additionalProperties": False,
}


def main(address: str) -> None:
    """Ask for each town; print an answer a line."""
    chats = [[{"role": "user", "content": f"How far is it to {town}?"}] for town in KILOMETRES]
    with connect(address) as client:
        calls = [call(client, chat) for chat in chats]  # all run at the same time
        answers = [reply(client, chat, asked) for chat, asked in zip(chats, calls, strict=True)]
        for answer in answers:
            print(json.loads(answer.text()))


def call(client: Client, chat: list[dict[str, Any]]) -> Generation:
    """Ask the model for a call of the function."""
    return client.generate(
        chat,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
    )


def reply(client: Client, chat: list[dict[str, Any]], asked: Generation) -> Generation:
    """Do what the model asked for, and ask it for JSON."""
    (answer,) = asked.all()
    (wanted,) = answer.tool_calls
    town = json.loads(str(wanted.arguments))["town"]
    function = {"name": wanted.name, "arguments": wanted.arguments}
    turn = {"id": wanted.id, "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": wanted.id, "content": str(KILOMETRES[town])}
    chat += [{"role": "assistant", "content": "", "tool_calls": [turn]}, result]
    limit = Constraint(json_schema=SCHEMA)
    return client.generate(chat, constraint=limit, temperature=0, max_tokens=200)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
