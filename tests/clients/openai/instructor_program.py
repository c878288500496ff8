"""A program of a user of instructor."""

import sys

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Write a JSON object with a name and an age."}]
for mode in (
    instructor.Mode.TOOLS,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
):
    patched = instructor.from_openai(client, mode=mode)
    person = patched.create(
        model="demo", messages=MESSAGES, response_model=Person, max_retries=0, temperature=0
    )
    assert isinstance(person, Person), (mode, person)
print("instructor: as expected")
