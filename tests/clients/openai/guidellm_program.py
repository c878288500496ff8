"""The requests that guidellm 0.8.1 sends, and what it reads of the answers."""

import json
import sys
import urllib.request

BODY = {
    "model": "demo",
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
TEXT = "Why is the sky blue?"
REQUESTS = {
    "completions": {"prompt": TEXT, "max_tokens": 5, "stop": None, "ignore_eos": True},
    "chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}],
        "max_completion_tokens": 5,
        "stop": None,
        "ignore_eos": True,
    },
}

for path, fields in REQUESTS.items():
    body = json.dumps(BODY | fields).encode()
    request = urllib.request.Request(
        f"{sys.argv[1]}/{path}", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        lines = [line.decode().strip() for line in response]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    counts = [json.loads(event)["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts), counts
    assert counts[-1] == 5, counts
print("guidellm: as expected")
