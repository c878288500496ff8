"""A model of random weights answers requests: scheduler, runner and kernels, no tokenizer."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from chairlift import _core
from chairlift.attention.cuda import CudaBackend
from chairlift.engine.device_runner import DeviceRunner, Pending
from chairlift.engine.model_runner import RunnerShape
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.config import GenerationDefaults, ModelConfig
from chairlift.model.kv_cache import allocate_kv_cache
from chairlift.model.transformer import Transformer
from chairlift.model.weights import BlockWeights, Weights

BLOCK_SIZE = 16

QWEN3_0_6B = ModelConfig(
    architecture="Qwen3ForCausalLM",
    dtype=torch.bfloat16,
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_model_len=2048,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    rope_scaling=None,
    tie_word_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=True,
    kv_windows=(None,),
    layer_group=(0,) * 28,
    eos_token_ids=(),
    bos_token_id=None,
    generation=GenerationDefaults(),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run took."""

    num_output_tokens: int
    num_steps: int
    seconds: float
    num_read_tokens: int
    """Tokens whose keys and values were read, over all steps."""


def random_weights(config: ModelConfig, device: torch.device) -> Weights:
    """Weights of the size that keeps activations near one."""

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        matrix = torch.randn(outputs, inputs, dtype=config.dtype, device=device)
        return matrix.mul_(inputs**-0.5)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=config.dtype, device=device)

    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads * dim, config.num_kv_heads * dim
    blocks = tuple(
        BlockWeights(
            attention_norm=ones(hidden),
            qkv=ops.linear(matrix(heads + 2 * kv_heads, hidden)),
            query_norm=ones(dim) if config.qk_norm else None,
            key_norm=ones(dim) if config.qk_norm else None,
            output=ops.linear(matrix(hidden, heads)),
            feed_forward_norm=ones(hidden),
            gate_up=ops.linear(matrix(2 * inner, hidden)),
            down=ops.linear(matrix(hidden, inner)),
        )
        for _ in range(config.num_layers)
    )
    embedding = matrix(config.vocab_size, hidden)
    return Weights(embedding, blocks, ones(hidden), ops.linear(embedding))


class Bench:
    """A scheduler and a runner with two steps in flight."""

    def __init__(
        self,
        config: ModelConfig,
        accelerator: Accelerator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.config = config
        backend = CudaBackend(accelerator.device)
        weights = random_weights(config, accelerator.device)
        self.model = Transformer(config, weights, backend)
        columns = -(-config.max_model_len // BLOCK_SIZE)
        num_blocks = 1 + max_num_seqs * columns
        self.kv_cache = allocate_kv_cache(config, backend, num_blocks, BLOCK_SIZE)
        self.scheduler = _core.Scheduler(
            policy="continuous",
            batch_size=max_num_seqs,
            batch_window=0,
            batch_timeout=0,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=config.max_model_len,
            max_queued_requests=4096,
            vocab_size=config.vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            kv_windows=config.kv_windows,
            prefix_cache=False,
            hash_key=bytes(32),
            token_table=_core.TokenTable([], []),
            steps_in_flight=2,
        )
        shape = RunnerShape(
            max_num_seqs,
            max_num_batched_tokens,
            1,
            columns,
            BLOCK_SIZE,
            self.scheduler.num_slots,
            steps_in_flight=2,
        )
        self.runner = DeviceRunner(
            self.model, backend, self.kv_cache, shape, time.monotonic_ns, accelerator
        )
        capacity = self.scheduler.plan_capacity
        self.plans = [torch.zeros(capacity, dtype=torch.int32) for _ in range(2)]

    def add(self, num_prompt: int, num_output: int) -> None:
        """Queue a request; greedy, to its full length."""
        prompt = [1 + i % 1000 for i in range(num_prompt)]
        now = time.monotonic_ns()
        self.scheduler.add(now, prompt, max_tokens=num_output, detokenize=False)

    def run(self) -> Result:
        """Run steps until all requests have ended."""
        flights: deque[tuple[int, Pending]] = deque()
        num_output = num_steps = num_read = 0
        began = time.perf_counter()
        while True:
            while len(flights) < 2:
                plan = self.plans[num_steps % 2]
                step = self.scheduler.schedule(time.monotonic_ns(), plan)
                if step is None:
                    break
                num_steps += 1
                inputs = self.runner.apply(plan)
                num_read += int(inputs.metadata.seq_lens.sum())
                self.runner.move_blocks(inputs)
                flights.append((step, self.runner.run(inputs)))
            if not flights:
                break
            step, launched = flights.popleft()
            sampled = launched.wait()
            num_output += len(sampled.tokens)
            now = time.monotonic_ns()
            self.scheduler.update(now, step, sampled.tokens, sampled.counts)
        return Result(num_output, num_steps, time.perf_counter() - began, num_read)

    def weight_bytes(self) -> int:
        """Read by every step."""
        layers = sum(
            layer.num_bytes
            for block in self.model.weights.blocks
            for layer in (block.qkv, block.output, block.gate_up, block.down)
        )
        return layers + self.model.weights.lm_head.num_bytes

    def kv_bytes_per_token(self) -> int:
        """Of all layers."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.dtype.itemsize
