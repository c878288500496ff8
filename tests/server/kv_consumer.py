"""A consumer of KV events, written from the description of vLLM's form alone: pyzmq and msgpack."""

import msgpack
import zmq

BLOCK_SIZE = 16
_TIMEOUT_MS = 30_000


class Mirror:
    """The blocks that events tell of.

    Attributes:
        blocks: By handle: the handle before it, its tokens, and its adapter.
        num_cleared: How often all were cleared.
    """

    def __init__(self):
        self.blocks = {}
        self.num_cleared = 0

    def apply(self, event):
        """Take an event as a map, or as an array."""
        if isinstance(event, list):
            kind, *values = event
            names = ("block_hashes", "parent_block_hash", "token_ids", "block_size")
            names += ("lora_id", "medium", "lora_name")
            event = {"type": kind, **dict(zip(names, values, strict=False))}
        if event["type"] == "AllBlocksCleared":
            self.blocks.clear()
            self.num_cleared += 1
        elif event["type"] == "BlockRemoved":
            for handle in event["block_hashes"]:
                del self.blocks[handle]
        else:
            assert event["type"] == "BlockStored"
            assert event["block_size"] == BLOCK_SIZE
            self.store(
                event["block_hashes"],
                event["parent_block_hash"],
                event["token_ids"],
                event["lora_name"],
            )

    def store(self, handles, parent, tokens, adapter):
        """Add blocks that follow each other."""
        assert len(tokens) == len(handles) * BLOCK_SIZE
        for place, handle in enumerate(handles):
            assert handle not in self.blocks
            own = tuple(tokens[place * BLOCK_SIZE : (place + 1) * BLOCK_SIZE])
            self.blocks[handle] = (parent, own, adapter)
            parent = handle

    def num_cached(self, prompt, adapter=None):
        """How many tokens of a prompt the server need not compute, by what was told."""
        known = {block: handle for handle, block in self.blocks.items()}
        assert len(known) == len(self.blocks), "equal blocks have different handles"
        parent, num_blocks = None, 0
        # The last token is always computed.
        for start in range(0, len(prompt) - BLOCK_SIZE, BLOCK_SIZE):
            parent = known.get((parent, tuple(prompt[start : start + BLOCK_SIZE]), adapter))
            if parent is None:
                break
            num_blocks += 1
        return num_blocks * BLOCK_SIZE

    @property
    def tokens(self):
        """All tokens that were told."""
        return {token for _, tokens, _ in self.blocks.values() for token in tokens}


class Consumer(Mirror):
    """A subscriber, and a client of the replay socket.

    Attributes:
        number: Of the last batch; None before the first.
        payloads: All that came.
    """

    def __init__(self, address, replay, *, topic=b"", unread=0):
        super().__init__()
        self.number = None
        self.payloads = []
        self._topic = topic
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        if unread:
            self._sub.setsockopt(zmq.RCVHWM, unread)
            self._sub.setsockopt(zmq.RCVBUF, 4096)
        self._sub.subscribe(topic)
        self._sub.connect(address)
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(replay)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.destroy(linger=0)

    def sync(self):
        """Ask for all that is missing, and take it."""
        self.take(self.replay(0 if self.number is None else self.number + 1))

    def replay(self, number):
        """Batches from a number on: numbers and payloads."""
        self._dealer.send_multipart((b"", number.to_bytes(8, "big")))
        batches = []
        while True:
            assert self._dealer.poll(_TIMEOUT_MS), "no answer"
            empty, encoded, payload = self._dealer.recv_multipart()
            assert empty == b""
            if int.from_bytes(encoded, "big", signed=True) == -1:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(encoded, "big"), payload))

    def received(self, until):
        """What the subscription has, up to a number: batches with the one that has it."""
        batches = []
        while not batches or batches[-1][0] < until:
            assert self._sub.poll(_TIMEOUT_MS), "nothing comes"
            topic, encoded, payload = self._sub.recv_multipart()
            assert topic == self._topic
            batches.append((int.from_bytes(encoded, "big"), payload))
        return batches

    def follow(self, batches):
        """Apply batches; return those that a gap made it ask for."""
        replayed = []
        for number, payload in batches:
            if number > self.number + 1:
                missing = self.replay(self.number + 1)
                self.take(missing)
                replayed += missing
            elif number > self.number:
                self.take([(number, payload)])
        return replayed

    def take(self, batches):
        """Apply batches."""
        for number, payload in batches:
            assert self.number is None or number > self.number
            time_s, events, rank = msgpack.unpackb(payload)
            assert time_s > 1.7e9
            assert rank == 0
            self.number = number
            self.payloads.append(payload)
            for event in events:
                self.apply(event)
