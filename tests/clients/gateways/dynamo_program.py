"""Run with ai-dynamo-runtime, pyzmq and msgpack: the ports of a publisher and its replay socket.

Reads prompts from the standard input, and writes the number of blocks that the server has of each.
A subscription of its own beside the service's says when a batch has come; the service, which has
had it, too, is asked until three answers agree.
"""

import asyncio
import json
import sys

import zmq
from dynamo.llm import SelectionService

PAUSE_S = 0.01


async def main():
    events, replay = (f"tcp://127.0.0.1:{port}" for port in sys.argv[1:])
    service = SelectionService(indexer_threads=1)
    worker = {"worker_id": 1, "model_name": "m", "endpoint": "http://127.0.0.1:1"}
    worker |= {"block_size": 16, "kv_events_endpoint": events, "replay_endpoint": replay}
    await service.upsert_worker(worker)
    subscriber = zmq.Context().socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(events)
    last = 0
    for line in sys.stdin:
        asked = json.loads(line)
        # The first prompts are asked before any batch came by the subscription.
        while last < asked["number"] and subscriber.poll(1000):
            last = int.from_bytes(subscriber.recv_multipart()[1], "big")
        request = {"model_name": "m", "token_ids": asked["token_ids"]}
        seen = []
        while len(seen) < 3 or len(set(seen[-3:])) > 1:
            await asyncio.sleep(PAUSE_S)
            scores = await service.overlap_scores(request)
            seen.append(scores["workers"][0]["device_blocks"])
        print(seen[-1], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
