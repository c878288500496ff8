"""What a server with a role makes of `kv_transfer_params`, and tells gateways of itself."""

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from chairlift.api import types
from chairlift.api.addresses import checked_address, host_and_port
from chairlift.api.errors import ConfigError, Reason, RequestError, echo
from chairlift.engine.prepare.block_source import BlockSource, scope_of
from chairlift.engine.prepare.prepared import Prepared
from chairlift.server.config import Role, ServerConfig
from chairlift.server.handoff.params import parsed
from chairlift.server.handoff.tickets import Tickets

_CONNECTOR: Final = "NixlConnector"
"""The connector whose form of `kv_transfer_params` this is: gateways look at the name."""
_KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_ANY_HOST: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Handoff:
    """What `kv_transfer_params` ask for; one of the two."""

    path: str
    """The field, for errors."""
    address: str = ""
    """The server that has the blocks of the prompt; empty wants a ticket with the answer."""
    instance: str = ""
    """The start of that server."""
    ticket: str = field(default="", repr=False)
    """What it gave for the prompt."""

    @property
    def wants_ticket(self) -> bool:
        """Return whether the answer says where the blocks of the prompt are."""
        return not self.address

    def source(self, prepared: Prepared) -> BlockSource | None:
        """Return where the blocks of a request are, as only one of its tenant and salt can say."""
        if self.wants_ticket:
            return None
        scope = scope_of(prepared.tenant, prepared.prefix_cache.salt, self.ticket.encode())
        return BlockSource(self.address, self.instance, self.ticket, scope)

    def check(self, request: types.Request) -> None:
        """Check that the blocks of a request can be moved.

        Raises:
            RequestError: They cannot, or the request does not read the prefix cache.
        """
        if request.adapter:
            raise unsupported(self.path, "not with an adapter")
        if request.output.prompt_logprobs:
            raise unsupported(self.path, "not with log probabilities of the prompt")


class Handoffs:
    """The two roles of servers that a gateway pairs; for one event loop.

    Attributes:
        instance: Another one for each start of the server.
        tickets: Those of a prefill server.
        layout: The layout of the engine's blocks, once the model is loaded; empty without a role.
    """

    def __init__(self, config: ServerConfig, block_size: int) -> None:
        """Begin without an address.

        Args:
            config: Settings of the server.
            block_size: Tokens of a block.

        Raises:
            ConfigError: An address is malformed, or belongs to another role.
        """
        self._role = config.role
        self.instance = secrets.token_hex(8)
        self.tickets = Tickets(block_size)
        self.layout = b""
        peers = config.prefill_peers or ()
        self._peers = {host_and_port(checked_address(p, "prefill_peers")): p for p in peers}
        self._address = _named_address(config)

    def listens_on(self, address: str) -> None:
        """Take the address of the gRPC port, which other servers know where no other is named."""
        place = host_and_port(address)
        if self._address is None and place is not None and place[0] not in _ANY_HOST:
            self._address = place

    @property
    def connector(self) -> str:
        """Return the name of the form in which blocks are handed over; empty without a role."""
        return "" if self._role is None else _CONNECTOR

    @property
    def kv_role(self) -> str:
        """Return the role as the vLLM protocol calls it; empty without one."""
        return "" if self._role is None else _KV_ROLES[self._role]

    @property
    def engine_id(self) -> str:
        """Return the name of this start of the server; empty without a role."""
        return "" if self._role is None else self.instance

    @property
    def pairing(self) -> str:
        """Return what servers have in common that can be paired; empty if it is not known."""
        return f"chairlift-{self.layout[:8].hex()}" if self.layout else ""

    def take(self, value: object, path: str) -> Handoff | None:
        """Check `kv_transfer_params`; None if they ask for nothing.

        Args:
            value: From JSON.
            path: The field that has it, for errors.

        Raises:
            RequestError: A field is wrong, or asks for what a server of this role does not do.
        """
        params = parsed(value, path)
        if params.wants_ticket:
            field = f"{path}.do_remote_decode"
            if self._role is not Role.PREFILL:
                raise unsupported(field, "only a server with role prefill does this")
            if self._address is None:
                why = "this server listens on no address for others, and has no prefill_address"
                raise unsupported(field, why)
            return Handoff(path)
        if not params.has_source:
            return None
        if self._role is not Role.DECODE:
            field = f"{path}.do_remote_prefill"
            raise unsupported(field, "only a server with role decode does this")
        peer = self._peers.get((params.host.lower(), params.port))
        if peer is None:
            field = f"{path}.remote_host"
            got = f"{echo(params.host)} with remote_port {params.port}"
            message = f"{field}: expected one of this server's prefill_peers, got {got}"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
        return Handoff(path, peer, params.instance, params.ticket)

    def params(self, prepared: Prepared) -> dict[str, Any]:
        """Return the `kv_transfer_params` of an answer, whose prompt was computed."""
        assert self._address is not None, "invariant: `take` has checked it"
        host, port = self._address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.instance,
            "remote_request_id": self.tickets.give(prepared),
            "remote_host": host,
            "remote_port": port,
        }


def unsupported(path: str, why: str) -> RequestError:
    """Return the error for what this server, or this request, cannot have."""
    return RequestError(Reason.UNSUPPORTED, f"{path}: {why}", field=path)


def _named_address(config: ServerConfig) -> tuple[str, int] | None:
    """Return the host and the port that the settings give."""
    if config.prefill_address is None:
        return None
    if config.role is not Role.PREFILL:
        message = "prefill_address: expected none without role prefill"
        raise ConfigError(message)
    place = host_and_port(checked_address(config.prefill_address, "prefill_address"))
    if place is None or place[0] in _ANY_HOST:
        expected = "expected HOST:PORT of this server"
        message = f"prefill_address: {expected}, got {config.prefill_address}"
        raise ConfigError(message)
    return place
