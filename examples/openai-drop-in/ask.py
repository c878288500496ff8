"""Stream an answer with the `openai` package: python ask.py URL MODEL QUESTION."""

import sys

from openai import OpenAI

url, model, question = sys.argv[1:]
with OpenAI(base_url=url, api_key="none") as client:
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
