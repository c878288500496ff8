"""Ask two assistants behind replicas of a model; print which replica answered.

Run `python replicas.py [ADDRESS]`.
"""

import sys

from chairlift import Chat, ChatMessage
from chairlift.client import Client, Generation, connect

ASSISTANTS = ("A", "B")
QUESTIONS = ("Why is the sky blue?", "What do bees make?", "What is a chairlift?")


def main(address: str) -> None:
    """Ask both assistants each question, at the same time."""
    replicas: list[str] = []
    with connect(address) as client:
        for question in QUESTIONS:
            print(question)
            generations = [ask(client, name, question) for name in ASSISTANTS]
            for name, generation in zip(ASSISTANTS, generations, strict=True):
                generation.all()
                # What is before the dot names the replica.
                replica, _, _ = generation.handle.partition(".")
                if replica not in replicas:
                    replicas.append(replica)
                usage = generation.finished.usage
                cached = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached"
                print(f"  assistant {name}: replica {replicas.index(replica) + 1}, {cached}")


def ask(client: Client, name: str, question: str) -> Generation:
    """Send a question to an assistant, whose instructions are the beginning of the prompt."""
    instructions = f"You are assistant {name}. " * 20
    messages = [ChatMessage("system", instructions), ChatMessage("user", question)]
    return client.generate(Chat(messages), max_tokens=20)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
