"""What checkpoints call the parts of a model: one table for each family."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """What a checkpoint calls the parts of a `ModelSpec`, without `.weight` and `.bias`."""

    embedding: str
    final_norm: str
    head: str
    layers: str
    """Before the number of a layer; the names below follow that number."""
    attention_norm: str
    query: str
    key: str
    value: str
    query_norm: str
    key_norm: str
    output: str
    feed_forward_norm: str
    gate: str
    up: str
    """Of a feed-forward without a gate: its only layer but `down`."""
    down: str
    sinks: str = ""
    """The whole name of the sinks of attention."""
    attention_norm_after: str = ""
    """Of a norm of what attention adds to the stream."""
    feed_forward_norm_after: str = ""
    scalar: str = ""
    """The whole name of what the stream is multiplied by behind a layer."""
    layer_embedding: str = ""
    """The table of `LayerInputs`, and below the map and the norm."""
    layer_context: str = ""
    layer_context_norm: str = ""
    input_gate: str = ""
    """Of a layer: from the stream to the size of its inputs."""
    input_projection: str = ""
    input_norm: str = ""
    """Of what the inputs add to the stream."""
    qkv: str = ""
    """One tensor with the rows of query, key and value, in the place of three."""
    gate_up: str = ""
    """One tensor with the rows of gate and up, in the place of two."""
    router: str = "mlp.gate"
    choice_bias: str = ""
    """The whole name of what is added to the scores of experts for their choice."""
    choice_bias_axes: int = 2
    """All but the last have one place."""
    router_norm: str = ""
    """Of a norm before the router; its weight is called `scale`."""
    factors: str = ""
    """The whole name of the factors of the weights of experts."""
    experts_norm: str = ""
    """Of a norm before the experts, and below those of what the shared one and they add."""
    shared_norm_after: str = ""
    experts_norm_after: str = ""
    expert_gate: str = "mlp.experts.{}.gate_proj"
    """Of the expert whose number stands in the braces."""
    expert_up: str = "mlp.experts.{}.up_proj"
    expert_down: str = "mlp.experts.{}.down_proj"
    expert_gate_up: str = ""
    """One tensor with the rows of gate and up, in the place of two."""
    in_turn: bool = False
    """Its rows are a gate, then an up, and so on, instead of all gates, then all ups."""
    experts_transposed: bool = False
    """The tensors of all experts of a layer have inputs before outputs, and biases beside them."""
    shared: str = "mlp.shared_experts.{}"
    """Of one that is shared, with the last part of the name of gate, up or down in the braces."""
    shared_gate: str = "mlp.shared_expert_gate"
    projection: tuple[str, ...] = ()
    """Of a layer with a recurrent state: what maps its inputs."""
    b_a: tuple[str, ...] = ()
    """What gives the shares and the decays of the gated delta rule."""
    conv: tuple[str, ...] = ()
    """One with all channels, or those of queries, of keys and of values."""
    delta: str = ""
    """Before the names of the numbers of each head, and of their norm."""
    rate: str = "A_log"
    """Of the logarithms of the rates of decays."""
    rates_are_negative: bool = False
    """Rates are stored below 0 in the place of their logarithms."""
    step_bias: str = "dt_bias"
    skip: str = "D"
    state_norm: str = "norm"
    mixed: str = ""
    """What maps the result of such a layer to the stream."""

    def each_layer(self, num_layers: int) -> Iterator[str]:
        """Yield how the names of each layer begin."""
        return (f"{self.layers}.{number}." for number in range(num_layers))
