"""The parts of a decoder layer as data: norms, attention and feed-forwards."""

from dataclasses import dataclass

from chairlift.attention.backend import Heads
from chairlift.model.specs.rope import PositionScale, Rope


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root mean square norm with a weight per number."""

    eps: float
    plus_one: bool = False
    """The checkpoint holds the weights less 1."""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer norm with a weight per number."""

    eps: float
    has_bias: bool


NormSpec = RmsNorm | LayerNorm


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention of a token to those before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope | None
    """None rotates nothing: the mask alone tells positions apart."""
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it; None sees all."""
    multiplier: float | None = None
    """Factor of the scores; None is `head_dim ** -0.5`."""
    position_scale: PositionScale | None = None
    soft_cap: float | None = None
    """A score `s` becomes `soft_cap * tanh(s / soft_cap)`."""
    qk_norm: RmsNorm | None = None
    """Norm of queries and keys before RoPE."""
    norms_all_heads: bool = False
    """That norm is one over all heads, and not one of each."""
    qkv_bias: bool = False
    out_bias: bool = False
    has_sinks: bool = False
    """Each head has a number that is the score of one more key, whose value is zero."""
    has_gate: bool = False
    """What attention computes is multiplied by the sigmoid of a projection of the same size."""
    kv_of: int | None = None
    """The layer whose keys and values are seen here; None projects its own."""
    keys_are_values: bool = False
    """Keys are values, too, before their norm and rotation: there is no projection of values."""
    value_norm_eps: float | None = None
    """`eps` of a root mean square norm of each value head, without weights; None has no norm."""

    @property
    def query_size(self) -> int:
        """Numbers of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def heads(self) -> Heads:
        """What the layer projects of each token."""
        num_kv_heads = 0 if self.kv_of is not None else self.num_kv_heads
        return Heads(
            self.num_heads,
            num_kv_heads,
            self.head_dim,
            has_gate=self.has_gate,
            has_values=not self.keys_are_values,
            norms_values=self.value_norm_eps is not None and num_kv_heads > 0,
        )

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.head_dim**-0.5) if self.multiplier is None else self.multiplier

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        if self.position_scale is not None and (self.rope is None or self.rope.rotary_dim):
            return "position_scale: expected none unless RoPE rotates all of a head"
        if self.keys_are_values and self.value_norm_eps is None:
            return "keys_are_values: expected a norm of values"
        return None


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward: `down(activation(gate) * up)` (Shazeer, 2020), or `down(activation(up))`."""

    intermediate_size: int
    activation: str = "silu"
    """`silu`, `gelu`, `gelu_tanh` or `relu2`."""
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    """Multiplies the argument of the activation."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Many small feed-forwards, of which a router chooses some for each token."""

    num: int
    top_k: int
    """Experts of each token."""
    intermediate_size: int
    """Numbers between the two layers of an expert."""
    scores: str
    """What weighs an expert: `softmax` over all, `softmax_of_chosen` or `sigmoid`."""
    activation: str = "silu"
    limit: float | None = None
    """Gates are at most this, ups between its negative and it, and an expert then computes
    `down((up + 1) * gate * sigmoid(alpha * gate))`; None clamps nothing."""
    alpha: float = 1.0
    bias: bool = False
    """Whether the layers of each expert have a bias."""
    router_bias: bool = False
    min_weight_sum: float | None = None
    """The weights of a token are divided by their sum, which is at least this; None leaves them."""
    multiplier: float = 1.0
    """Multiplies the weights after that."""
    has_choice_bias: bool = False
    """The checkpoint has numbers that are added to the scores for the choice alone."""
    shared: Mlp | None = None
    """Computes every token, beside the chosen ones."""
    shared_is_gated: bool = False
    """What it adds is multiplied by the sigmoid of one more output of the router."""
    separate_norm: RmsNorm | None = None
    """Four norms, each with weights of its own: of the stream, for the router and for the experts,
    and of what the shared expert and the others add. None leaves that to the norms of the layer."""
    has_factors: bool = False
    """The checkpoint has a factor of the weight of each expert."""
    gated: bool = True
    """An expert has a gate, as an `Mlp`."""

    @property
    def router_size(self) -> int:
        """Return the outputs of the router."""
        return self.num + self.shared_is_gated

    def unsupported_reason(self) -> str | None:
        """Return what no kernel computes, after the name of its field; None if there is nothing."""
        if not 1 <= self.top_k <= self.num:
            return f"experts: expected at least {self.top_k}, got {self.num}"
        if self.router_bias and self.shared_is_gated:
            return "router_bias: expected none beside the gate of a shared feed-forward"
        if self.limit is not None and (self.activation != "silu" or not self.gated):
            return "limit: expected none unless a gate has silu"
        if self.separate_norm is not None and self.shared is None:
            return "experts: expected a shared one beside those with norms of their own"
        return None
