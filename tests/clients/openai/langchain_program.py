"""A program of a user of LangChain."""

import sys

from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

SHARED = {"base_url": sys.argv[1], "api_key": "none", "model": "demo", "max_retries": 0}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


for use_responses_api in (False, True):
    model = ChatOpenAI(temperature=0, use_responses_api=use_responses_api, **SHARED)
    answer = model.invoke("Why is the sky blue?")
    assert answer.text.startswith("The sky is blue because"), answer
    assert answer.usage_metadata["output_tokens"] > 0
    streamed = "".join(chunk.text for chunk in model.stream("Why is the sky blue?"))
    assert streamed == answer.text

    for method in ("json_schema", "function_calling"):
        structured = model.with_structured_output(Person, method=method)
        whole = structured.invoke("Write a JSON object with a name and an age.")
        assert isinstance(whole, Person), (method, whole)
        *_, last = structured.stream("Write a JSON object with a name and an age.")
        assert isinstance(last, Person), (method, last)

    refused = None
    try:
        model.invoke("word " * 5000)
    except ContextOverflowError as error:
        refused = error
    assert refused is not None
print("langchain-openai: as expected")
