"""A program of a user of litellm."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

SHARED = {"model": "openai/demo", "api_base": sys.argv[1], "api_key": "none", "num_retries": 0}
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

whole = litellm.completion(messages=MESSAGES, temperature=0, **SHARED)
assert whole.choices[0].message.content.startswith("The sky is blue because"), whole
options = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(litellm.completion(messages=MESSAGES, temperature=0, **options, **SHARED))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == whole.choices[0].message.content
called = litellm.completion(messages=MESSAGES, tools=[TOOL], tool_choice="required", **SHARED)
assert called.choices[0].message.tool_calls[0].function.name == "weather", called
response = litellm.responses(input="Why is the sky blue?", temperature=0, **SHARED)
assert response.output[0].content[0].text == text, response
refused = None
try:
    litellm.completion(messages=[{"role": "user", "content": "word " * 5000}], **SHARED)
except litellm.ContextWindowExceededError as error:
    refused = error
assert refused is not None
print("litellm: as expected")
