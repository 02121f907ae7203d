"""What options add: classes put before a scheduler, each once and in one order, whatever is asked for."""

import subprocess
import sys
from itertools import product

import pytest
from helpers.drive import Drive, make

from tinyengine.ablation import Ablated
from tinyengine.budget import Adaptive
from tinyengine.extras import EXTRAS, assemble, compose
from tinyengine.memory import Blocks, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.priority import Prioritised
from tinyengine.scheduler import Chunked, Orca, Paged, Static
from tinyengine.speculate import Speculative
from tinyengine.stages import STAGES, build, check_options


class Fixed:
    """A budget that learns nothing."""

    tokens = 5

    def observe(self, n_tokens: int, seconds: float):
        pass


VALUES = {
    "num_speculative_tokens": 3,
    "policy": "priority",
    "budget": Fixed(),
    "chunking": False,
    "mixing": False,
    "admit_first_chunk": True,
    "enable_prefix_caching": True,
}
SIZES = {"num_slots": 32, "block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 9}
ORDER = [Speculative, Prioritised, Adaptive, Ablated]


def subsets(stage: str) -> list[dict]:
    """Every choice of options that the stage takes."""
    names = [name for name, (stages, _) in EXTRAS.items() if stage in stages]
    return [
        {name: VALUES[name] for name, chosen in zip(names, choice) if chosen}
        for choice in product((False, True), repeat=len(names))
    ]


def test_every_option_has_a_value_here():
    assert VALUES.keys() == EXTRAS.keys()


@pytest.mark.parametrize(("stage", "count"), [("static", 1), ("selective", 1), ("paged", 4), ("invariant", 128)])
def test_each_class_stands_once_and_in_the_order_of_the_table(stage, count):
    kind = STAGES[stage][0]
    assert len(subsets(stage)) == count
    for options in subsets(stage):
        scheduler = build(stage, options, **SIZES)
        added = [each for each in type(scheduler).__mro__ if each in ORDER]
        wanted = {EXTRAS[name][1] for name in options} - {CachedBlocks}
        assert added == [each for each in ORDER if each in wanted] and isinstance(scheduler, kind)
        assert type(scheduler) is kind or added, "nothing is put before a stage that is asked for nothing"
        assert type(scheduler) is type(build(stage, dict(reversed(options.items())), **SIZES))
        caching = "enable_prefix_caching" in options
        assert type(scheduler.memory) is (CachedBlocks if caching else STAGES[stage][1])
        assert all(getattr(scheduler, name) == value for name, value in options.items() if "caching" not in name)


@pytest.mark.parametrize("stage", ["paged", "chunked"])
def test_every_combination_serves_a_crowd(stage):
    """The judge looks at each step. Eight blocks of 4 for five requests that repeat themselves, and that come late."""
    for options in subsets(stage):
        drive = Drive(build(stage, options, **SIZES))
        drive.add(*(make(n, [0, 1, 2, 3] * 2, 9, priority=n % 2) for n in range(3)))
        drive.run(later=((2, make(3, 12, 5, priority=-1)), (4, make(4, [0, 1, 2, 3] * 3, 6))))


@pytest.mark.parametrize("stage", STAGES)
def test_an_option_of_another_stage_is_refused_and_the_known_ones_are_listed(stage):
    taken = sorted(name for name, (stages, _) in EXTRAS.items() if stage in stages)
    check_options(stage, taken)
    for name in {*EXTRAS, "colour"} - {*taken}:
        with pytest.raises(ValueError, match=f"{name} is no option of stage '{stage}', whose options are: ") as caught:
            build(stage, {name: VALUES.get(name)}, **SIZES)
        assert str(caught.value).endswith(", ".join(taken) or "none")
    check_options(stage, ["colour"], further=("colour",))


@pytest.mark.parametrize("kind", [Static, Orca])
def test_a_scheduler_without_a_budget_is_made_without_one(kind):
    scheduler = assemble(kind, Slots, {}, num_slots=64, max_num_seqs=3, max_num_batched_tokens=9)
    assert type(scheduler) is kind and scheduler.token_budget is None and scheduler.max_num_seqs == 3


def test_a_composed_class_is_made_once():
    assert compose(Chunked) is Chunked
    assert compose(Prioritised, Chunked) is compose(Prioritised, Chunked) is not compose(Adaptive, Chunked)
    assert compose(Speculative, Prioritised, Paged).__name__ == "SpeculativePrioritisedPaged"
    assert compose(Adaptive, Ablated, Chunked).__mro__[1:5] == (Adaptive, Ablated, Chunked, Paged)


def test_neutral_options_change_no_plan():
    """As the paper's sections leave them: the policy fcfs, no budget, no guesses, nothing taken out."""
    neutral = {"policy": "fcfs", "budget": None, "num_speculative_tokens": 0, "chunking": True, "mixing": True}
    runs = []
    for options in ({}, *({name: value} for name, value in neutral.items()), neutral):
        drive = Drive(assemble(Chunked, Blocks, options, **SIZES))
        drive.add(*(make(n, 5 + n, 9) for n in range(5))).run()
        runs.append(drive.steps)
    assert runs[0] and all(steps == runs[0] for steps in runs)


def test_putting_schedulers_together_needs_no_torch():
    program = "import sys, tinyengine.extras; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
