from tests.ray.kills import run


async def test_a_kill_under_load_hangs_no_stream_loses_no_request_and_doubles_no_token():
    counts = await run(num_kills=2, num_streams=48, seed=1)
    assert counts.kills == 2
    assert counts.hangs == counts.lost == counts.wrong_tokens == 0
    assert counts.answered >= 48
    assert counts.began_and_failed >= 1
