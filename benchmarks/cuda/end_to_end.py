"""A model of random weights answers requests: scheduler, runner and kernels, no tokenizer."""

import time
from collections import deque
from dataclasses import dataclass

import torch
from chairlift import _core
from chairlift.attention.cuda import CudaBackend
from chairlift.core.new_request import NewRequest
from chairlift.engine.runner.device_draws import Pending
from chairlift.engine.runner.device_runner import DeviceRunner
from chairlift.engine.runner.shape import RunnerShape
from chairlift.kernels.cuda import ops
from chairlift.kernels.cuda.device import Accelerator
from chairlift.model.config import ModelConfig
from chairlift.model.families import FAMILIES
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.norms import Norm
from chairlift.model.parts.weights import LayerWeights, Weights
from chairlift.model.specs.layer_parts import Attention, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerShape, LayerSpec, ModelSpec
from chairlift.model.specs.rope import Rope
from chairlift.model.specs.vocabulary import Embedding, Head

BLOCK_SIZE = 16


def qwen3(shape: LayerShape, *, num_layers: int, vocab_size: int) -> ModelConfig:
    """Return a model of the family Qwen 3 with these sizes."""
    norm = RmsNorm(eps=1e-6)
    attention = Attention(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, Rope(theta=1e6), qk_norm=norm
    )
    layer = LayerSpec(attention, Mlp(shape.intermediate_size), norm)
    return ModelConfig(
        architecture="Qwen3ForCausalLM",
        spec=ModelSpec(
            Embedding(vocab_size, shape.hidden_size),
            (layer,) * num_layers,
            norm,
            Head(is_tied=True),
        ),
        names=FAMILIES["Qwen3ForCausalLM"].names,
        dtype=torch.bfloat16,
        max_model_len=2048,
    )


QWEN3_0_6B = qwen3(LayerShape(1024, 3072, 16, 8, 128), num_layers=28, vocab_size=151_936)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run took."""

    num_output_tokens: int
    num_steps: int
    seconds: float
    busy_seconds: float
    """From the first to the last launch of each step, summed; 0 where there is no GPU."""
    num_read_tokens: int
    """Tokens whose keys and values were read, over all steps."""


def random_weights(config: ModelConfig, device: torch.device) -> Weights:
    """Weights of the size that keeps activations near one."""

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        matrix = torch.randn(outputs, inputs, dtype=config.dtype, device=device)
        return matrix.mul_(inputs**-0.5)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=config.dtype, device=device)

    norm = Norm(config.spec.final_norm, ones(config.spec.hidden_size))

    spec = config.spec
    hidden, inner, num_heads, num_kv_heads, dim = spec.shape
    heads, kv_heads = num_heads * dim, num_kv_heads * dim
    layers = tuple(
        LayerWeights(
            attention_norm=norm,
            qkv=ops.linear(matrix(heads + 2 * kv_heads, hidden)),
            query_norm=ones(dim) if own.qk_norm else None,
            key_norm=ones(dim) if own.qk_norm else None,
            output=ops.linear(matrix(hidden, heads)),
            feed_forward_norm=norm,
            gate_up=ops.linear(matrix(2 * inner, hidden)),
            down=ops.linear(matrix(hidden, inner)),
        )
        for own in spec.attentions
    )
    embedding = matrix(spec.vocab_size, hidden)
    return Weights(embedding, layers, norm, ops.linear(embedding))


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
            vocab_size=config.spec.vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            kv_windows=config.spec.kv_windows,
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
        request = NewRequest(prompt, max_tokens=num_output, detokenize=False)
        self.scheduler.add(now, request)

    def run(self) -> Result:
        """Run steps until all requests have ended."""
        flights: deque[tuple[int, Pending]] = deque()
        num_output = num_steps = num_read = 0
        marks = []
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
                marks.append(self._mark())
                flights.append((step, self.runner.run(inputs)))
                marks.append(self._mark())
            if not flights:
                break
            step, launched = flights.popleft()
            sampled = launched.wait()
            num_output += len(sampled.tokens)
            now = time.monotonic_ns()
            self.scheduler.update(now, step, sampled.tokens)
        seconds = time.perf_counter() - began
        pairs = zip(marks[::2], marks[1::2], strict=True)
        busy = sum(first.elapsed_time(last) for first, last in pairs if first and last) * 1e-3
        return Result(num_output, num_steps, seconds, busy, num_read)

    def _mark(self) -> torch.cuda.Event | None:
        """Return an event behind the launches so far; None where there is no GPU."""
        if self.kv_cache.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def weight_bytes(self) -> int:
        """Read by every step."""
        layers = sum(
            layer.num_bytes
            for own in self.model.weights.layers
            for layer in (own.qkv, own.output, own.gate_up, own.down)
            if layer is not None
        )
        head = self.model.weights.head
        return layers + (0 if head is None else head.num_bytes)

    def kv_bytes_per_token(self) -> int:
        """Of all layers."""
        spec, item = self.config.spec, self.config.dtype.itemsize
        return 2 * spec.num_layers * spec.shape.num_kv_heads * spec.shape.head_dim * item
