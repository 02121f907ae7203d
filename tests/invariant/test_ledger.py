"""The ledger holds for the invariant engine, sees the plain one fail, and catches every fault that is planted."""

import json

import pytest
import torch

from tinyengine import Engine, SamplingParams, load_model
from tinyengine.cli import main
from tinyengine.invariant.envelope import tested_operators
from tinyengine.invariant.forms import FORMS
from tinyengine.invariant.sabotage import FAULTS
from tinyengine.qwen3 import Qwen3
from tinyengine.verify import checks, hot, ledger
from tinyengine.verify.checks import CHECKS, cases, chunk_borders
from tinyengine.verify.watch import Scenario, Subject

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# One check that catches the fault in both dtypes; docs/invariance.md has the whole table.
CAUGHT_BY = dict.fromkeys(FAULTS, "chunk borders") | {"page_split": "block size", "consecutive": "placement of blocks"}


@pytest.fixture(scope="module", params=DTYPES)
def model(request):
    return load_model("tiny", device="cpu", dtype=DTYPES[request.param])


@pytest.fixture(scope="module")
def plain(model):
    return Subject(model, "chunked")


@pytest.fixture
def threads():
    """Sets torch's thread count for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def subject(model):
    return Subject(model, "invariant")


@pytest.fixture(scope="module")
def shown(model):
    return Subject(model, "invariant", fast=False)


@pytest.mark.parametrize("check", CHECKS)
def test_the_invariant_engine_holds(subject, check):
    count = CHECKS[check](subject)
    assert count.cases >= 5 and count.compared > 50
    assert count.differing == 0


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_the_form_that_a_lesson_shows_holds(shown, check):
    count = CHECKS[check](shown)
    assert count.cases >= 5 and count.compared > 50
    assert count.differing == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("check", ["neighbours, NaN and infinity", "chunk borders", "prefix cache", "sampling"])
def test_the_invariant_engine_holds_with_more_threads(model, threads, check, n):
    threads(n)
    assert CHECKS[check](Subject(model, "invariant")).holds


def test_another_shape_of_model_holds(random_model):
    """Four query heads a key head, an untied head, and a vocabulary that is no multiple of anything."""
    subject = Subject(random_model, "invariant")
    for check in ("batch size", "neighbours, NaN and infinity", "chunk borders", "prompts beside decodes", "sampling"):
        assert CHECKS[check](subject).holds, check


@pytest.mark.parametrize("check", ["chunk borders", "preemption and recompute", "decode row is prompt row"])
def test_the_plain_engine_fails_where_it_is_known_to(plain, check):
    assert CHECKS[check](plain).differing > 1000


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(model, fault):
    assert CHECKS[CAUGHT_BY[fault]](Subject(model, "invariant", FAULTS[fault])).differing > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_in_the_form_that_a_lesson_shows(model, fault):
    assert CHECKS[CAUGHT_BY[fault]](Subject(model, "invariant", FAULTS[fault], fast=False)).differing > 0


def test_a_single_bit_is_seen(subject, monkeypatch):
    """One float of one layer's values moves by its last bit, in a batch only."""
    right = type(subject.engine(num_slots=64).operators).swiglu

    def swiglu(self, gate_up):
        out = right(self, gate_up)
        if len(out) == 3:
            out[1, 7] = torch.nextafter(out[1, 7].float(), torch.tensor(torch.inf)).to(out.dtype) * (1 + 2**-7)
        return out

    scenario = Scenario(cases(subject, (5, 17, 63)), {"compiled_decode": False})  # else it would not be called
    assert subject.against_alone(scenario).holds
    monkeypatch.setattr(type(subject.engine(num_slots=64).operators), "swiglu", swiglu)
    assert not subject.against_alone(scenario).holds


def test_a_run_that_does_not_repeat_itself_is_seen(model, monkeypatch):
    """The eight faults are all deterministic, so none of them shows in the first check."""
    right, noise = Qwen3.logits, torch.Generator().manual_seed(0)
    unsteady = Subject(model, "invariant")
    assert CHECKS["run to run"](unsteady).holds

    def logits(self, hidden, operators):
        return right(self, hidden, operators) * (1 + 2**-6 * torch.randint(2, (1,), generator=noise))

    monkeypatch.setattr(Qwen3, "logits", logits)
    assert not CHECKS["run to run"](unsteady).holds


def test_a_tie_that_goes_to_the_highest_id_is_seen(subject, monkeypatch):
    """Nor in the check of ties: their logits are other ones, and the best of them is found all the same."""
    last = checks.choose

    def choose(logits, wanted):
        return logits.shape[-1] - 1 - last(logits.flip(-1), wanted)

    monkeypatch.setattr(checks, "choose", choose)
    assert not CHECKS["ties"](subject).holds


def test_a_scenario_that_shows_nothing_is_an_error(subject):
    with pytest.raises(RuntimeError, match="never came to what it is meant to show"):
        subject.against_alone(Scenario(cases(subject, (5,)), shows=lambda engine: False))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_linears_holds(model, form):
    subject, rows = Subject(model, "invariant"), tested_operators(model).tile_rows
    make = subject.engine

    def engine(*args, **options):
        made = make(*args, **options)
        made.operators = FORMS[form](rows)
        return made

    subject.engine = engine
    count = chunk_borders(subject)
    assert count.holds and count.cases == 30


def test_two_stages_share_a_model_and_leave_nothing_on_it(tiny):
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    before = dict(tiny.__dict__)
    plain, invariant = Engine(tiny, "chunked"), Engine(tiny, "invariant")
    for engine in (plain, invariant):
        engine.add_request([1, 2, 3], params, "r")
    while plain.has_unfinished() or invariant.has_unfinished():
        plain.step(), invariant.step()
    assert plain.operators is not invariant.operators
    assert plain.outputs["r"].token_ids == invariant.outputs["r"].token_ids
    assert {k: v for k, v in tiny.__dict__.items() if k != "_rope"} == {k: v for k, v in before.items() if k != "_rope"}


def test_verify_prints_the_ledger_and_says_no_where_it_does_not_hold(monkeypatch, capsys, tmp_path):
    few = {name: CHECKS[name] for name in ("run to run", "chunk borders")}
    monkeypatch.setattr(ledger.verify, "__defaults__", (few, True, True))
    path = tmp_path / "ledger.json"
    assert main(["verify", "--device", "cpu", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "chunk borders" in out and "alone" in out and "Every bit is the same in all 2 checks" in out
    found = json.loads(path.read_text())
    assert found["holds"] and found["checks"]["chunk borders"]["chunked"]["differing"] > 0

    monkeypatch.setattr(ledger, "INVARIANT", "chunked")
    assert main(["verify", "--device", "cpu"]) == 1
    assert "NOT invariant: chunk borders." in capsys.readouterr().out


@pytest.mark.parametrize("dtype", DTYPES)
def test_hot_weights_flip_tokens_of_the_plain_engine_and_no_bit_of_the_invariant_one(tiny, dtype):
    model = hot.hot_model(tiny.config, DTYPES[dtype])
    plain, invariant = (hot.run(model, stage, requests=12, tokens=24) for stage in ("chunked", "invariant"))
    if dtype == "bf16":
        assert plain.moved >= 10 and plain.flipped >= 2
    else:  # compiled loops leave a batch little to decide about
        assert plain.moved >= 1
    assert (invariant.flipped, invariant.moved) == (0, 0)


def test_verify_counts_the_tokens_that_flip(monkeypatch, capsys):
    found = {"chunked": hot.Hot(64, 51, 64), "invariant": hot.Hot(64, 0, 0)}
    monkeypatch.setattr(hot, "compared", lambda config, dtype, fast: found)
    assert main(["verify", "--hot", "--device", "cpu"]) == 0
    assert "chunked: of 64 requests, 51 get other tokens in a batch than alone" in capsys.readouterr().out
    found["invariant"] = hot.Hot(64, 0, 1)
    assert main(["verify", "--hot", "--device", "cpu"]) == 1


@pytest.mark.parametrize("threads", ["0", "-1"])
def test_verify_refuses_a_thread_count_in_a_sentence(capsys, threads):
    assert main(["verify", "--threads", threads]) == 2
    assert "but torch needs at least 1" in capsys.readouterr().err
