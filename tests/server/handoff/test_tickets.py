"""What a prefill server gives for a prompt: it counts for that prompt, tenant and salt alone."""

import grpc
import pytest
from chairlift.api import types
from chairlift.engine.prepare.block_source import scope_of
from chairlift.server.handoff import tickets
from chairlift.server.handoff.tickets import Tickets

from tests.server.handoff.asking import (
    ANN,
    BOB,
    LONG,
    NUM_BLOCKS,
    WANTED,
    ask,
    assert_nothing_is_pinned,
    end_of,
    post,
    sample,
    sampled_hits,
    ticket_of,
    with_ticket,
)


async def test_a_ticket_shares_the_blocks_of_its_tenant_with_that_tenant_alone(
    prefill, decode_of, tenants
):
    of_source, of_decode = tenants
    async with (
        prefill(server=of_source) as source,
        decode_of(source.address, **of_decode) as serving,
    ):
        params = await ticket_of(source, token=ANN)
        # Bob has seen the ticket, and knows the prompt: it is computed for him.
        complete = await ask(serving, params, token=BOB)
        assert complete.cached_tokens == NUM_BLOCKS * 16
        assert sample(source, "sent_blocks_total") == NUM_BLOCKS
        assert sampled_hits(source) == 0
        assert (await ask(serving, params, token=ANN)).cached_tokens == NUM_BLOCKS * 16
        assert sampled_hits(source) == NUM_BLOCKS


async def test_a_ticket_counts_for_its_salt_alone(prefill, decode_of):
    async with prefill() as source, decode_of(source.address) as serving:
        fields = {"prompt": LONG, "cache_salt": "up"}
        first = await post(source, **fields, kv_transfer_params=WANTED)
        given = {"kv_transfer_params": first.json()["kv_transfer_params"]}
        assert (await post(serving, **fields | {"cache_salt": "down"}, **given)).status == 200
        assert sampled_hits(source) == 0
        assert (await post(serving, **fields, **given)).status == 200
        assert sampled_hits(source) == NUM_BLOCKS


@pytest.mark.parametrize(
    "fields",
    [
        {"ticket": "x" * 32},
        {"ticket": "x" * 500_000},
        {"instance": "0123456789abcdef"},
        {"instance": ""},
        {"scope": ""},
        {"scope": "\U0001f6a1"},
        {"prompt": [9, *LONG[1:]]},
        {"prompt": LONG[:100]},
    ],
    ids=["forged", "huge", "restart", "no-instance", "no-scope", "scope", "prompt", "prefix"],
)
async def test_a_ticket_that_does_not_fit_is_refused(prefill, fields):
    async with prefill() as source:
        params = await ticket_of(source)
        status = await end_of(with_ticket(source, params, **fields))
        assert (status.code, status.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST")
        assert status.message.startswith("ticket: ")
        assert (await end_of(with_ticket(source, params))).code is grpc.StatusCode.OK
        await assert_nothing_is_pinned(source)


async def test_a_ticket_that_has_ended_is_refused_and_its_prompt_is_one_as_any_other(
    prefill, decode_of, monkeypatch
):
    monkeypatch.setattr(tickets, "TICKET_S", 0.0)
    async with prefill() as source, decode_of(source.address) as serving:
        params = await ticket_of(source)
        assert (await end_of(with_ticket(source, params))).reason == "UNKNOWN_REQUEST"
        assert (await ask(serving, params)).cached_tokens == NUM_BLOCKS * 16
        assert sampled_hits(source) == 0
        await assert_nothing_is_pinned(source)


class Prompt:
    """What a ticket is given for."""

    def __init__(self, tenant):
        self.prompt, self.tenant, self.prefix_cache = LONG, tenant, types.PrefixCache()


def test_a_tenant_with_many_tickets_loses_its_own(monkeypatch):
    monkeypatch.setattr(tickets, "MAX_TICKETS", 8)
    now = [0.0]
    given = Tickets(16, lambda: now[0])

    def find(ticket, tenant):
        return given.find(ticket, scope_of(tenant, "", ticket.encode()), LONG[:161])

    of_ann = [given.give(Prompt("ann")) for _ in range(3)]
    of_bob = [given.give(Prompt("bob")) for _ in range(100)]
    assert len(given) == 8
    assert all(find(ticket, "ann").tenant == "ann" for ticket in of_ann)
    assert [find(ticket, "bob") is not None for ticket in of_bob[-6:]] == [False, *5 * [True]]
    now[0] = tickets.TICKET_S
    assert find(of_ann[0], "ann") is None
    given.give(Prompt("ann"))
    assert len(given) == 1
