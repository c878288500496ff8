"""The prefill servers of a decode server: which one is asked, and the calls to them.

Calls block threads of their own, so that neither the engine's thread nor the event loop waits for a
server, or touches what it sends.
"""

import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from chairlift.api.addresses import is_local
from chairlift.api.logs import fields
from chairlift.engine.transfer.block_import import BlockImport
from chairlift.server.transfer.settings import PeerSettings
from chairlift.server.transfer.shared_memory import Segment
from chairlift.server.transfer.sharing import Lending
from chairlift.server.transfer.wire import decode, max_receive_bytes
from chairlift.v1 import transfer_pb2 as pb
from chairlift.v1 import transfer_pb2_grpc

_log = logging.getLogger(__name__)

_NUM_THREADS: Final = 32
"""Calls at once; the engine asks for no more prompts."""
_BACK_OFF_S: Final = 5.0
"""A server that could not be reached is left alone for this long."""
_LONG_BACK_OFF_S: Final = 60.0
"""The same for one that refuses all calls: it has another model, or no such service."""
_REFUSALS: Final = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
)
_UNREACHABLE: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_OPTIONS: Final = (
    # A server that is stopped reads nothing: only pings find out.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
)


@dataclass(slots=True)
class _Peer:
    """One prefill server."""

    address: str
    stub: Any
    channel: Any
    num_live: int = field(default=0)
    open_from: float = field(default=0.0)
    """Monotonic seconds: it is not asked before."""


class PrefillPeers:
    """Asks prefill servers for blocks: a `Fetcher`."""

    def __init__(
        self, settings: PeerSettings, layout: bytes, block_bytes: int, lending: Lending
    ) -> None:
        """Connect when the first prompt is asked for.

        Args:
            settings: Addresses and secrets.
            layout: The layout of the blocks.
            block_bytes: Bytes of a block.
            lending: Makes the memory that servers of this machine write to.
        """
        self._lending = lending
        self._layout, self._block_bytes = layout, block_bytes
        self._metadata = settings.metadata
        options = (*_OPTIONS, ("grpc.max_receive_message_length", max_receive_bytes(block_bytes)))
        self._peers = [_connect(address, settings, options) for address in settings.addresses]
        self._lock = threading.Lock()
        self._is_closed = False
        self._live: set[BlockImport] = set()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="chairlift-prefill")

    def fetch(self, wanted: BlockImport) -> bool:
        """Ask its source, else the server with the fewest calls; False where none can be asked."""
        now, source = time.monotonic(), wanted.source
        with self._lock:
            open_peers = [
                peer
                for peer in self._peers
                if peer.open_from <= now and (source is None or peer.address == source.address)
            ]
            if not open_peers or self._is_closed:
                return False
            # At random among equals, so that several decode servers do not all ask the first.
            random.shuffle(open_peers)
            peer = min(open_peers, key=lambda peer: peer.num_live)
            peer.num_live += 1
            self._live.add(wanted)
        self._threads.submit(self._run, peer, wanted)
        return True

    def _run(self, peer: _Peer, wanted: BlockImport) -> None:
        try:
            self._receive(peer, wanted)
        except grpc.RpcError as error:
            self._note(peer, wanted, error)
        except ValueError as error:
            _log.error("wrong blocks", extra=fields(peer=peer.address, error=str(error)))
            self._leave_alone(peer, _LONG_BACK_OFF_S)
        except Exception:
            _log.exception("blocks could not be fetched")
        finally:
            wanted.end()
            with self._lock:
                peer.num_live -= 1
                self._live.discard(wanted)

    def _receive(self, peer: _Peer, wanted: BlockImport) -> None:
        source = wanted.source
        if source is not None:
            try:
                self._call(peer, wanted, source.scope, source.ticket, source.instance)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                # It has ended, or is another tenant's: the prompt is one as any other.
                note = fields(peer=peer.address, error=str(error.details())[:200])
                _log.info("a prefill server does not know a ticket", extra=note)
            else:
                return
        self._call(peer, wanted, wanted.scope)

    def _call(
        self, peer: _Peer, wanted: BlockImport, scope: str, ticket: str = "", instance: str = ""
    ) -> None:
        request = pb.PrefillRequest(
            layout=self._layout,
            token_ids=wanted.token_ids,
            first_block=wanted.first,
            scope=scope,
            ticket=ticket,
            instance=instance,
        )
        segment = None
        if is_local(peer.address):
            count = len(wanted.numbers)
            segment = self._lending.new_segment(peer.address, self._block_bytes, count)
        if segment is None:
            self._read(peer, wanted, request, None)
            return
        request.shared_memory.CopyFrom(segment.named)
        with closing(segment):
            self._read(peer, wanted, request, segment)

    def _read(
        self,
        peer: _Peer,
        wanted: BlockImport,
        request: pb.PrefillRequest,
        segment: Segment | None,
    ) -> None:
        """Read the blocks of a call, until it ends or no further ones are wanted."""
        call = peer.stub.Prefill(request, timeout=wanted.limit_s, metadata=self._metadata)
        wanted.on_cancel(call.cancel)
        try:
            for response in call:
                accepted, blocks = response.accepted, response.blocks
                if response.HasField("accepted") and not accepted.uses_shared_memory:
                    if segment is not None:
                        segment.close()
                        self._lending.was_refused(peer.address)
                    segment = None
                for number, data in decode(blocks, self._block_bytes, segment):
                    if blocks.is_shared:
                        self._lending.count(1)
                    if not wanted.put(number, data):
                        return
        finally:
            # A message that is wrong ends the call, too.
            call.cancel()

    def _note(self, peer: _Peer, wanted: BlockImport, error: Any) -> None:
        """Note a failed call; one that was cancelled here is none."""
        code = error.code()
        if wanted.is_over and not wanted.was_late:
            return
        level = logging.WARNING
        if code in _REFUSALS:
            self._leave_alone(peer, _LONG_BACK_OFF_S)
        elif code in _UNREACHABLE or wanted.was_late:
            self._leave_alone(peer, _BACK_OFF_S)
        else:
            level = logging.INFO
        note = fields(peer=peer.address, code=code.name, error=str(error.details())[:200])
        _log.log(level, "a prefill server did not send all blocks", extra=note)

    def _leave_alone(self, peer: _Peer, seconds: float) -> None:
        with self._lock:
            peer.open_from = time.monotonic() + seconds

    def close(self) -> None:
        """End all calls."""
        with self._lock:
            self._is_closed = True
            live = tuple(self._live)
        for wanted in live:
            wanted.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for peer in self._peers:
            peer.channel.close()


def _connect(address: str, settings: PeerSettings, options: Sequence[tuple[str, int]]) -> _Peer:
    if is_local(address):
        # A proxy of the variables cannot reach a server of this machine.
        options = (*options, ("grpc.enable_http_proxy", 0))
    if settings.ca is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        credentials = grpc.ssl_channel_credentials(root_certificates=settings.ca)
        channel = grpc.secure_channel(address, credentials, options=options)
    return _Peer(address, transfer_pb2_grpc.TransferServiceStub(channel), channel)
