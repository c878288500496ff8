"""A program of a user of the OpenAI Agents SDK."""

import asyncio
import sys
from typing import Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


cities: list[str] = []


@function_tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Return the weather in a city."""
    cities.append(city)
    return "sunny"


async def main() -> None:
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="demo", openai_client=client)
        settings = ModelSettings(temperature=0)
        agent = Agent(name="plain", instructions="Be brief.", model=model, model_settings=settings)
        result = await Runner.run(agent, "Why is the sky blue?")
        assert result.final_output, result
        streamed = Runner.run_streamed(agent, "Why is the sky blue?")
        async for _event in streamed.stream_events():
            pass
        assert streamed.final_output == result.final_output

        agent = Agent(name="typed", model=model, model_settings=settings, output_type=Person)
        result = await Runner.run(agent, "Write a JSON object with a name and an age.")
        assert isinstance(result.final_output, Person), result

        # The model calls, the function's result comes back as a turn, and the model answers it.
        cities.clear()
        agent = Agent(
            name="caller",
            model=model,
            model_settings=ModelSettings(
                temperature=0, tool_choice="required", parallel_tool_calls=False
            ),
            tools=[weather],
        )
        result = await Runner.run(agent, "How is the weather in Paris?", max_turns=3)
        assert cities, result
        assert result.final_output is not None
    print("openai-agents: as expected")


asyncio.run(main())
