"""What `chairlift bench speculation` counts comes from the records of the steps."""

from chairlift.api.types import Request, Sampling, Stopping
from chairlift.bench.speculation import run


def test_a_prompt_that_is_computed_again_is_no_draft(make_engine, kv_blocks):
    engine = make_engine(
        drafts="off", prefix_cache=False, max_num_seqs=4, kv_cache_memory=kv_blocks(12)
    )
    requests = [
        Request([i + 3] * 24, Sampling(temperature=0), Stopping(max_tokens=40, ignore_eos=True))
        for i in range(4)
    ]
    counts = run(engine, [engine.prepare(request) for request in requests])
    assert engine.load().num_preemptions > 0
    assert (counts.num_tokens, counts.num_drafts, counts.num_accepted) == (4 * 40, 0, 0)


def test_drafts_and_what_they_gained_are_those_of_the_steps(make_engine):
    engine = make_engine(drafts="lookup", max_num_seqs=4)
    records = []
    engine.watch_steps(records.append)
    request = Request([5, 6, 7] * 12, Sampling(temperature=0), Stopping(max_tokens=60))
    counts = run(engine, [engine.prepare(request)])
    assert counts.num_drafts == sum(int(r.done.num_drafts.sum()) for r in records) > 0
    assert counts.num_accepted == sum(int(r.done.num_accepted.sum()) for r in records)
    # The prompt's step gives the first token, each other step one and what its drafts gave.
    assert counts.num_tokens == 1 + counts.num_draws + counts.num_accepted
