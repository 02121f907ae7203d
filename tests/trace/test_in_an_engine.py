"""Engine(trace=...): what an engine keeps changes no output, and what is kept is the end of the whole."""

import pytest
from helpers.traces import cut

from tinyengine import STAGES, Engine, SamplingParams
from tinyengine.clock import IterationClock
from tinyengine.metrics import measure
from tinyengine.overlap import OverlappedEngine
from visualizers import show
from visualizers.player import VIEWS

ALL = {"num_speculative_tokens": 3, "policy": "priority", "enable_prefix_caching": True}


def served(kind, model, stage, trace, options):
    """An engine that has served 14 requests, two at a time and a few aborted, and its queue after each iteration."""
    engine = kind(
        model, stage, max_num_seqs=2, num_slots=128, block_size=8, clock=IterationClock(), trace=trace, **options
    )
    outputs, queues = [], []
    for number in range(14):
        params = SamplingParams(max_tokens=1 + 3 * number % 11, ignore_eos=True)
        name = engine.add_request([5, 6, 7] * (1 + number % 5), params, arrival=0.7 * number, priority=number % 2)
        outputs.append(engine.outputs[name])
    while engine.has_unfinished():
        before = engine.trace.forgotten + len(engine.trace.iterations)
        engine.step()
        if engine.trace.forgotten + len(engine.trace.iterations) > before:
            queues.append(tuple(request.request_id for request in engine.scheduler.waiting))
            if before in (6, 15):
                engine.abort_request(outputs[before // 2 + 1].request_id)
    return engine, [output.token_ids for output in outputs], queues


@pytest.mark.parametrize("kind", [Engine, OverlappedEngine])
@pytest.mark.parametrize(("stage", "options"), [*((stage, {}) for stage in STAGES), ("chunked", ALL)])
def test_what_an_engine_keeps_changes_no_output(kind, stage, options, tiny, tmp_path):
    whole, tokens, queues = served(kind, tiny, stage, "full", options)
    assert list(whole.trace.queues()) == queues and max(map(len, queues)) > 2
    bounded, *rest = served(kind, tiny, stage, 6, options)
    assert rest == [tokens, queues]
    assert list(bounded.trace.queues()) == queues[bounded.trace.forgotten :]
    assert 6 <= len(bounded.trace.iterations) <= 12 and bounded.trace.forgotten > 10
    again = cut(whole.trace, bounded.trace.forgotten)
    assert (again.iterations, again.requests, again.pieces) == (
        (bounded.trace.iterations, bounded.trace.requests, bounded.trace.pieces)
    )
    assert measure(again) == measure(bounded.trace)
    if options:  # pictures take a second each
        player = show(bounded.trace, views=VIEWS)
        assert player.to_png() and player.to_html(tmp_path / "page.html").exists()

    nothing, *rest = served(kind, tiny, stage, None, options)
    assert rest[0] == tokens
    assert not (nothing.trace.requests or nothing.trace.iterations or nothing.trace.events or nothing.trace.pieces)


def test_an_id_is_free_again_when_the_trace_has_forgotten_it(tiny):
    engine = Engine(tiny, num_slots=128, trace=2)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    engine.add_request([5, 6], params, "again")
    while engine.has_unfinished():
        engine.step()
    engine.outputs.pop("again")
    with pytest.raises(ValueError, match="'again' is taken"):
        engine.add_request([5, 6], params, "again")
    engine.generate([[7, 8]] * 3, SamplingParams(max_tokens=9, ignore_eos=True))
    assert engine.add_request([5, 6], params, "again") == "again"
