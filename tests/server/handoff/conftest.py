from contextlib import asynccontextmanager

import pytest
from chairlift.v1 import transfer_pb2_grpc

from tests.server.handoff.asking import ANN, BOB, DECODE, DOORS


@pytest.fixture
def prefill(serve):
    """Serve with the role prefill, by every protocol."""

    @asynccontextmanager
    async def run(*, listen="127.0.0.1:0", server=None, **settings):
        server = {"role": "prefill", **DOORS, **(server or {})}
        async with serve(server=server, listen=listen, **settings) as source:
            source.transfer = transfer_pb2_grpc.TransferServiceStub(source.channel)
            source.exporting = source.server._transfers.exporting
            yield source

    return run


@pytest.fixture
def decode_of(serve):
    """Serve with the role decode, before one prefill server; a prompt that does not come fails."""

    def run(address, **server):
        roles = {"role": "decode", "prefill_peers": address, "strict_roles": True}
        return serve(server={**roles, **DOORS, **server})

    return run


@pytest.fixture
def tenants(tmp_path):
    """Settings of servers whose callers are ann, bob and the decode server."""
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"ann:{ANN}\nbob:{BOB}\ndecode:{DECODE}\n")
    token.write_text(f"{DECODE}\n")
    for path in (tokens, token):
        path.chmod(0o600)
    return {"auth_tokens": str(tokens)}, {"auth_tokens": str(tokens), "prefill_token": str(token)}
