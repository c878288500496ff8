from tests.engine.drive import drain, greedy


def test_records_tell_who_sat_in_which_row(make_engine, clock):
    engine = make_engine(max_num_seqs=2, max_num_batched_tokens=16)
    records = []
    stop_watching = engine.watch_steps(records.append)
    long, short, late = (
        engine.add(greedy([i] * size, most, ignore_eos=True)).request_id
        for i, (size, most) in enumerate([(20, 4), (3, 2), (1, 2)], start=1)
    )
    drain(engine)
    seats = [[(row, who, n, sampled) for row, who, n, sampled in r.rows] for r in records]
    (row_of_long,) = {row for step in seats for row, who, *_ in step if who == long}
    assert seats[0] == [(row_of_long, long, 16, False)]
    assert sum(n for step in seats for _, who, n, _ in step if who == long) == 20 + 3
    assert sum(sampled for step in seats for _, who, _, sampled in step if who == long) == 4
    assert all(len({row for row, *_ in step}) == len(step) for step in seats)
    # The late request takes the row that the short one left.
    assert {row for step in seats for row, who, *_ in step if who in (short, late)} == {
        1 - row_of_long
    }
    assert [r.step for r in records] == list(range(1, len(records) + 1))
    assert records[0].num_waiting == 2
    stop_watching()
    engine.add(greedy([1], 2))
    drain(engine)
    assert len(records) == records[-1].step


def test_the_parts_of_a_step_add_up_to_it(make_engine, clock):
    engine = make_engine(max_num_seqs=2)
    records = []
    engine.watch_steps(records.append)

    def slow(part, seconds):
        def run(*arguments, **options):
            clock.advance(seconds)
            return part(*arguments, **options)

        return run

    runner = engine.runner
    runner.apply = slow(runner.apply, 0.25)
    runner.model.forward = slow(runner.model.forward, 4.0)
    runner.sampler.sample = slow(runner.sampler.sample, 2.0)
    engine.add(greedy([1, 2, 3], 2, ignore_eos=True))
    drain(engine)
    assert [(r.times.inputs_s, r.times.forward_s, r.times.sample_s) for r in records] == [
        (0.25, 4.0, 2.0)
    ] * 2
    assert [sum(r.times) for r in records] == [r.duration_s for r in records] == [6.25] * 2


def test_a_step_in_parts_counts_all_its_passes(make_engine, clock):
    engine = make_engine(max_num_seqs=2)
    records = []
    engine.watch_steps(records.append)
    forward = engine.runner.model.forward

    def fails_once(*arguments):
        clock.advance(1.0)
        if clock.now == 2_000_000_000:
            raise MemoryError
        return forward(*arguments)

    engine.runner.model.forward = fails_once
    for _ in range(2):
        engine.add(greedy([1, 2, 3], 1, ignore_eos=True))
    drain(engine)
    assert [r.times.forward_s for r in records] == [3.0]
