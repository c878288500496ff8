"""A real checkpoint through the server: SmolLM2 from its GGUF file, beside transformers."""

from contextlib import AsyncExitStack

import gguf
import grpc
import pytest
import torch
from chairlift.api.config import Dtype, engine_config
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.server.app.server import Server
from chairlift.server.config import ServerConfig
from chairlift.v1 import generation_pb2_grpc, server_pb2, server_pb2_grpc
from transformers import LlamaConfig, LlamaForCausalLM

from tests.model.gguf.files import gguf_names, unpermuted
from tests.server.connection import receive, start
from tests.smollm2 import needs_smollm2

NUM_TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "def quicksort(items):\n",
    "import numpy as np\n",
    "Die Hauptstadt von Deutschland ist",
    "1 2 3 4 5 6",
    "Dear Sir or Madam,",
    "In 1969, the",
    "The quick brown fox",
    "Water boils at",
    "SELECT name FROM",
    "My favourite book is",
    "La vie est",
    "Energy equals",
    "<|im_start|>user\nTell me a joke.<|im_end|>\n<|im_start|>assistant\n",
    "#include <stdio.h>\n",
    "Question: What is 2+2?\nAnswer:",
    "The meaning of life",
    "To be, or not to be",
    "Machine learning is",
)


pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def reference():
    """Return the model in transformers, of the numbers that the file's blocks stand for."""
    reader = gguf.GGUFReader(resolve_model("smollm2"))
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    names, state = gguf_names(model), {}
    stored = {tensor.name: tensor for tensor in reader.tensors}
    for name, parameter in model.named_parameters():
        tensor = stored[names[name]]
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(parameter.shape)
        heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2])
        state[name] = torch.from_numpy(unpermuted(numbers, heads).copy())
    model.load_state_dict(state, strict=False)
    return model


async def answers(tmp_path, **settings):
    """Serve the model and answer all prompts at once; return prompts' and answers' token ids."""
    engine = Engine("smollm2", max_num_seqs=20, kv_cache_memory=2**29, **settings)
    config = ServerConfig(model="smollm2", listen=f"unix:{tmp_path}/lift.sock")
    async with AsyncExitStack() as stack:
        server = Server(engine_config(max_num_seqs=20, **settings), config)
        address = await server.bind()
        stack.push_async_callback(server.stop, 0)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        await server.serve(AsyncEngine.of(engine))
        info = await server_pb2_grpc.ServerServiceStub(channel).GetModelInfo(
            server_pb2.GetModelInfoRequest()
        )
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        for number, prompt in enumerate(PROMPTS):
            await call.write(start(str(number), prompt=prompt, max_tokens=NUM_TOKENS))
        await call.done_writing()
        received = await receive(call)
    tokens = [received.tokens(str(number)) for number in range(len(PROMPTS))]
    return info, [engine.tokenizer.encode(prompt) for prompt in PROMPTS], tokens


async def test_greedy_answers_in_float32_are_those_of_transformers(reference, tmp_path):
    _, prompts, tokens = await answers(tmp_path, dtype=Dtype.FLOAT32)
    for prompt, answer in zip(prompts, tokens, strict=True):
        assert len(answer) == NUM_TOKENS
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer


async def test_blocks_are_kept_and_the_info_names_them(tmp_path):
    info, _, tokens = await answers(tmp_path)
    assert (info.name, info.architecture, info.quantization) == (
        "smollm2",
        "LlamaForCausalLM",
        "Q4_1",
    )
    assert info.has_chat_template
    assert all(len(answer) == NUM_TOKENS for answer in tokens)
