"""A program of a user of LangChain."""

import sys

from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="demo", temperature=0, max_retries=0)
answer = model.invoke("Why is the sky blue?")
assert answer.content.startswith("The sky is blue because"), answer
assert answer.usage_metadata["output_tokens"] > 0
streamed = "".join(chunk.content for chunk in model.stream("Why is the sky blue?"))
assert streamed == answer.content
print("langchain-openai: as expected")
