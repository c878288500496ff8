"""A slow reader pays for tokens by credit; fast readers beside it go on.

Run `python slow_reader.py [ADDRESS]`.
"""

import sys

from chairlift.client import connect

NUM_TOKENS = 40
WINDOW = 8
"""Tokens that the slow reader allows before it has taken them."""


def main(address: str) -> None:
    """Start a slow and three fast readers; let the slow one read when the others have ended."""
    with connect(address) as client:
        slow = client.generate(
            "Once upon a time", credit=WINDOW, max_tokens=NUM_TOKENS, ignore_eos=True
        )
        fast = [
            client.generate(f"Story {number}:", max_tokens=NUM_TOKENS, ignore_eos=True)
            for number in range(3)
        ]
        for number, generation in enumerate(fast):
            (answer,) = generation.all()
            print(f"fast reader {number}: {answer.num_tokens} tokens")
        load = client.load()
        num_suspended = load.num_running_suspended + load.num_waiting_suspended
        print(f"suspended for want of credit: {num_suspended}")
        num_taken, num_allowed = 0, WINDOW
        for event in slow.events():
            num_taken += event.tokens.num_tokens
            # An event may bring text and no token: each window is paid for once.
            if num_taken == num_allowed:
                print(f"slow reader: {num_taken} tokens")
                slow.credit(WINDOW)
                num_allowed += WINDOW


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
