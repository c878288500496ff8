"""The same request has the same tokens through every door."""

import openai
from chairlift.v1 import generation_pb2 as pb

from tests.server.adapters import test_open_inference as oip
from tests.server.adapters import test_vllm_engine as vllm
from tests.server.connection import start


async def test_a_seed_draws_the_same_answer_through_every_door(others):
    seed, prompt = 20_261_124, "one two three"
    async with others(server={"http_listen": "127.0.0.1:0"}) as server:
        native = await server.say(
            start(
                "a",
                prompt=prompt,
                max_tokens=24,
                sampling=pb.Sampling(temperature=1.0, seed=seed, top_p=0.9),
            )
        )
        text, ids = native.text("a"), native.tokens("a")
        drawn = {"temperature": 1.0, "seed": seed, "top_p": 0.9, "max_tokens": 24}
        drawn["ignore_eos"] = True

        engine = await vllm.answer(server, vllm.request(prompt=prompt, **drawn))
        assert vllm.ids_of(engine) == ids

        whole = await oip.stub(server).ModelInfer(
            oip.request(prompt, sampling=drawn, exclude_input_in_output=True)
        )
        assert oip.outputs(whole)["text_output"] == text

        url = f"{server.server.http_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            del drawn["ignore_eos"]
            completion = await client.completions.create(
                model="tiny", prompt=prompt, extra_body={"ignore_eos": True}, **drawn
            )
            assert completion.choices[0].text == text
