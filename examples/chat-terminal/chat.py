"""Chat in a terminal: Ctrl-C stops an answer, Ctrl-D ends.

Run `python chat.py [ADDRESS]`.
"""

import sys

from chairlift.api.errors import ChairliftError, RequestError
from chairlift.client import Client, connect


def main(address: str) -> None:
    """Read lines and answer them, each with the conversation before it."""
    turns: list[dict[str, str]] = []
    with connect(address) as client:
        while True:
            try:
                turns.append({"role": "user", "content": input("> ")})
                turns.append({"role": "assistant", "content": answer(client, turns)})
            except RequestError as error:
                print(f"refused: {error.message}")
                turns.clear()
            except (EOFError, KeyboardInterrupt):
                print()
                return


def answer(client: Client, turns: list[dict[str, str]]) -> str:
    """Print an answer as it comes; return it, or what there is when Ctrl-C stops it."""
    pieces = []
    # If the connection breaks, the client connects again and the answer goes on where it was.
    generation = client.generate(turns, temperature=0, max_tokens=300, resume_window_s=30)
    try:
        for piece in generation:
            print(piece, end="", flush=True)
            pieces.append(piece)
        print()
    except KeyboardInterrupt:
        generation.cancel()
        print(" [stopped]")
    return "".join(pieces)


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
    except ChairliftError as error:
        sys.exit(str(error))
