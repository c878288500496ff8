"""A program of a user of Pydantic AI."""

import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind("demo", provider=provider)
    answer = Agent(model, model_settings={"temperature": 0}).run_sync("Why is the sky blue?")
    assert answer.output.startswith("The sky is blue because"), answer
    for output in (ToolOutput(Person), NativeOutput(Person)):
        agent = Agent(model, output_type=output, model_settings={"temperature": 0})
        result = agent.run_sync("Write a JSON object with a name and an age.")
        assert isinstance(result.output, Person), result
    refused = None
    try:
        Agent(model).run_sync("word " * 5000)
    except ModelHTTPError as error:
        refused = error
    assert refused is not None
    assert refused.status_code == 400, refused
    assert refused.body["code"] == "context_length_exceeded", refused
print("pydantic-ai: as expected")
