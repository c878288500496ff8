"""Commands that give and limit tokens, and random requests whose number of tokens is known."""

from chairlift.v1 import generation_pb2 as pb
from google.protobuf import duration_pb2

from tests.server.connection import start

# A request that waits for more ends as TIME_LIMIT, which is no end that a test here expects.
FAR = pb.Schedule(time_limit=duration_pb2.Duration(seconds=60))


def credit(request_id, tokens):
    return pb.GenerateRequest(credit=pb.Credit(request_id=request_id, tokens=tokens))


def update(request_id, **fields):
    return pb.GenerateRequest(update=pb.Update(request_id=request_id, **fields))


def stopping(request_id, **fields):
    return update(request_id, stopping=pb.Stopping(ignore_eos=True, **fields))


def answers(request_id, num_answers, *, max_tokens=12, credit, **fields):
    fields["sampling"] = pb.Sampling(temperature=0, n=num_answers)
    return start(request_id, max_tokens=max_tokens, credit=credit, schedule=FAR, **fields)


def ends_of(received, request_id):
    """How each answer ended, and with how many tokens, in the order of the answers."""
    counts: dict[int, int] = {}
    reasons: dict[int, str] = {}
    for event in received.of(request_id):
        if event.HasField("tokens"):
            counts[event.index] = counts.get(event.index, 0) + event.tokens.num_tokens
        elif event.HasField("finished"):
            reasons[event.index] = pb.FinishReason.Name(event.finished.reason)[14:]
    return [(reasons[index], counts.get(index, 0)) for index in sorted(reasons)]


class Draw:
    """A random request: what a client says of it, and what has to come of it."""

    def __init__(self, dice, request_id):
        self.request_id = request_id
        self.num_answers = dice.randint(1, 4)
        # Either the credit alone is a limit, or `max_tokens` is one besides.
        self.limit = dice.choice([None, dice.randint(1, 12)])
        self.credits = [dice.randint(0, 6)]
        max_tokens = self.limit or 60
        self.commands = [
            answers(request_id, self.num_answers, max_tokens=max_tokens, credit=self.credits[0])
        ]
        for _ in range(dice.randint(0, 5)):
            if dice.random() < 0.3:
                same = {} if not self.limit and dice.random() < 0.5 else {"max_tokens": max_tokens}
                self.commands.append(stopping(request_id, **same))
            else:
                self.credits.append(dice.randint(0, 6))
                self.commands.append(credit(request_id, self.credits[-1]))

    def check(self, received):
        ends, paid = ends_of(received, self.request_id), sum(self.credits)
        assert len(ends) == self.num_answers, self.commands
        assert {(reason, count > 0) for reason, count in ends} <= {
            ("LENGTH", True),
            ("CANCELLED", False),
        }, self.commands
        counts = [count for _, count in ends]
        if self.limit is None:
            assert sum(counts) == paid, self.commands
        else:
            assert max(counts) <= self.limit, self.commands
            assert sum(counts) <= paid, self.commands
            assert max(counts) == self.limit or sum(counts) == paid, self.commands
