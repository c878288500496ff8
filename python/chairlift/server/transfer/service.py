"""`TransferService`: prompts computed for other servers.

The call is the lease: when it ends, however it ends, its request is aborted and nothing is held.
"""

import asyncio
from contextlib import closing
from typing import Final

import grpc

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.handoff.tickets import Holder
from chairlift.server.protocols.names import Names
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer
from chairlift.server.transfer.attached import Exporting
from chairlift.server.transfer.requests import PrefillRequests
from chairlift.server.transfer.sender import BlockSender
from chairlift.v1 import transfer_pb2 as pb
from chairlift.v1 import transfer_pb2_grpc

MAX_SCOPE_CHARACTERS: Final = 256
_NAMES: Final = Names({"prompt": "token_ids", "prefix_cache.salt": "scope"})
"""The caller's names of the fields that errors of the engine name."""


class TransferServicer(transfer_pb2_grpc.TransferServiceServicer):
    """Sends the blocks of prompts."""

    def __init__(self, server: ServerContext, exporting: Exporting) -> None:
        self._server = server
        self._exporting = exporting

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; `Prefill` writes encoded messages."""
        name = pb.DESCRIPTOR.services_by_name["TransferService"].full_name
        encoded = {
            "Prefill": grpc.unary_stream_rpc_method_handler(
                self.Prefill, pb.PrefillRequest.FromString
            )
        }
        transfer_pb2_grpc.add_TransferServiceServicer_to_server(self, server)
        # The last handler of a name is the one that counts.
        server.add_registered_method_handlers(name, encoded)

    async def Prefill(self, request: pb.PrefillRequest, context: ServicerContext) -> None:
        """Compute a prompt and write its blocks."""
        try:
            await self._prefill(request, context)
        except RequestError as error:
            raise _NAMES.translate(error) from None

    async def _prefill(self, request: pb.PrefillRequest, context: ServicerContext) -> None:
        engine = self._server.gate.admit()
        block_size, first, count = self._checked(request)
        num_tokens = (first + count) * block_size + 1
        # Before they are converted: a message holds a million.
        engine.engine.text_limits.check_length(len(request.token_ids), num_answer=1)
        tenant = self._server.authenticator.tenant(context)
        holder = self._holder(request, num_tokens, tenant)
        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(arrived.set)

        export = self._exporting.new_export(first, wake)
        writer = Writer(context, self._server.write_timeout_s)
        segment = self._exporting.borrowing.open(request, self._exporting.block_bytes)
        sender = BlockSender(export, writer, self._exporting, segment)
        with closing(sender), self._server.outboxes.open() as outbox:
            live = PrefillRequests(
                self._server,
                outbox,
                tenant=tenant,
                connection=context.peer(),
                time_remaining=context.time_remaining,
            )
            live.arrived = arrived
            try:
                await live.submit_counted(_request(request, num_tokens, holder), export=export)
                accepted = pb.PrefillAccepted(
                    instance=self._exporting.instance,
                    uses_shared_memory=sender.uses_shared_memory,
                )
                await writer.write(pb.PrefillResponse(accepted=accepted).SerializeToString())
                while live.end is None:
                    await arrived.wait()
                    arrived.clear()
                    await sender.send()
                # All blocks were put before the end was delivered.
                await sender.send()
                if isinstance(live.end, RequestError):
                    raise live.end
                usage = live.end.usage
                end = pb.PrefillEnd(computed_tokens=usage.prompt_tokens - usage.cached_tokens)
                await writer.write(pb.PrefillResponse(end=end).SerializeToString())
            finally:
                # Only synchronous work here: this also runs when the call is being cancelled.
                export.close()
                live.close()

    def _holder(self, request: pb.PrefillRequest, num_tokens: int, tenant: str) -> Holder:
        """Return the tenant and the salt whose blocks a call shares.

        Raises:
            RequestError: Its ticket is not known, or counts for another prompt or scope.
        """
        if not request.ticket:
            return Holder(tenant, request.scope)
        handoffs = self._server.handoffs
        holder = None
        if request.instance == handoffs.instance:
            prompt = request.token_ids[:num_tokens]
            holder = handoffs.tickets.find(request.ticket, request.scope, prompt)
        if holder is None:
            message = "ticket: expected one of this instance, prompt and scope that has not ended"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="ticket")
        return holder

    def _checked(self, request: pb.PrefillRequest) -> tuple[int, int, int]:
        """Return the size of a block, the index of the first that is wanted, and how many.

        Raises:
            RequestError: A field is wrong, or the caller has other blocks than this server.
        """
        layout, block_size = self._exporting.layout, self._exporting.block_size
        if request.layout != layout:
            expected, got = layout[:8].hex(), request.layout[:8].hex()
            message = f"layout: expected {expected}..., got {got or 'none'}..."
            raise RequestError(Reason.FOREIGN_LAYOUT, message, field="layout")
        if len(request.scope) > MAX_SCOPE_CHARACTERS:
            num = len(request.scope)
            message = f"scope: expected at most {MAX_SCOPE_CHARACTERS} characters, got {num}"
            raise RequestError(Reason.BAD_PARAMETER, message, field="scope")
        num_blocks = max(0, len(request.token_ids) - 1) // block_size
        if num_blocks == 0:
            expected = f"at least {block_size + 1} tokens, a block and one more"
            message = f"token_ids: expected {expected}, got {len(request.token_ids)}"
            raise RequestError(Reason.BAD_PARAMETER, message, field="token_ids")
        first = request.first_block
        if first >= num_blocks:
            message = f"first_block: expected a block below {num_blocks}, got {first}"
            raise RequestError(Reason.BAD_PARAMETER, message, field="first_block")
        return block_size, first, num_blocks - first


def _request(request: pb.PrefillRequest, num_tokens: int, holder: Holder) -> types.Request:
    """Return the request that computes a prompt; the token that it draws is not used.

    With a ticket the work is that of the ticket's tenant, and the quotas are the caller's.
    """
    return types.Request(
        list(request.token_ids[:num_tokens]),
        types.Sampling(temperature=0.0),
        types.Stopping(max_tokens=1, ignore_eos=True),
        types.Output(text=False),
        prefix_cache=types.PrefixCache(salt=holder.salt),
        tenant=holder.tenant,
    )
