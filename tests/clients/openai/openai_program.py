"""A program of a user of the `openai` package; run with several versions of it."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
ANSWER = "The sky is blue because the air scatters blue light more than red light."

whole = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0)
assert whole.choices[0].message.content.startswith(ANSWER), whole
assert whole.choices[0].finish_reason == "stop"

options = {"include_usage": True}
chunks = list(
    client.chat.completions.create(
        model="demo", messages=MESSAGES, temperature=0, stream=True, stream_options=options
    )
)
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == whole.choices[0].message.content
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

response = client.responses.create(model="demo", input="Why is the sky blue?", temperature=0)
assert response.output_text == text
assert response.status == "completed"
with client.responses.stream(model="demo", input="Why is the sky blue?", temperature=0) as stream:
    kinds = [event.type for event in stream]
    assert stream.get_final_response().output_text == text
assert kinds[0] == "response.created"
assert kinds[-1] == "response.completed"

completion = client.completions.create(model="demo", prompt="Once", max_tokens=4, n=2)
assert len(completion.choices) == 2
assert client.models.list().data[0].id == "demo"
refused = None
try:
    client.chat.completions.create(model="demo", messages=MESSAGES, top_p=2)
except openai.BadRequestError as error:
    refused = error
assert refused is not None
assert refused.param == "top_p"
print(f"openai {openai.__version__} for Python: as expected")
