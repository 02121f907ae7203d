"""An exercise away from its notebook: its twins, and the mistake that is named when one explains all that was seen."""

import linecache

import pytest
import torch

from tinyengine.course import exercise as exercising
from tinyengine.course.exercise import close, exercise


def halves(numbers):
    """Each number halved, and how many there are."""
    return [number // 2 for number in numbers], len(numbers)


def backwards(numbers):
    return [number // 2 for number in reversed(numbers)], len(numbers)


@exercise(
    "2.1",
    points=3,
    solution=halves,
    mistakes=[
        ("doubles", "you double", ("// 2", "* 2")),
        ("true division", "you divide, and keep the rest", ("// 2", "/ 2")),
        ("backwards", "you begin at the end", backwards),
        ("only the first", "you look at the first number only", ("for number in numbers", "for number in numbers[:1]")),
        ("raises", "you ask for more than there is", ("len(numbers)", "numbers[len(numbers)]")),
        ("no return", "you forget to return", ("return ", "")),
    ],
)
def check_2_1(c, answer):
    runs = c.cases("it runs", answer, [([4],), ([2, 6, 8],)], drawn=lambda random: [([random.randint(10, 99)],)])
    if c.parts("two things", runs, "(halves, number)", 2):
        c.agree("halves", runs, part=0, points=2)
        c.agree("number", runs, part=1)


def say(capsys, answer, check=check_2_1, **options):
    check(answer, **options)
    return capsys.readouterr().out


def test_the_solution_gets_all_points_and_the_seed_is_printed(capsys):
    assert say(capsys, halves).startswith("2.1: 3 of 3 points (inputs drawn from seed 0)\n  ok     two things\n")
    assert "(inputs drawn from seed 7)" in say(capsys, halves, seed=7)


@pytest.mark.parametrize("mistake", check_2_1.mistakes, ids=lambda mistake: mistake.name)
def test_each_twin_is_recognised(capsys, mistake):
    said = say(capsys, check_2_1.twin(mistake))
    assert f"why    most likely: {mistake.sentence}.\n" in said and "3 of 3" not in said


def test_a_twin_has_the_name_that_the_answer_must_have():
    for mistake in check_2_1.mistakes:
        assert check_2_1.source(mistake).startswith("def halves(numbers):\n")


def test_a_change_that_does_not_apply_is_refused():
    @exercise("2.1", points=1, solution=halves, mistakes=[("typo", "you err", ("// 3", "* 2"))])
    def check(c, answer):
        pass

    with pytest.raises(ValueError, match="mistake 'typo': '// 3' is not in the solution"):
        check.source(check.mistakes[0])


def test_a_mistake_is_named_only_where_it_explains_all_cases(capsys):
    assert "most likely" not in say(
        capsys, lambda numbers: ([n * 2 if n > 4 else n // 2 for n in numbers], len(numbers))
    )
    assert "most likely" not in say(capsys, lambda numbers: (halves(numbers)[0], 1))


def test_what_was_called_is_quoted(capsys):
    said = say(capsys, lambda numbers: (halves(numbers)[0], "1"))
    assert "number: halves([4]) gives ([2], '1'): you have '1', a str, where an int is needed." in said
    assert "two things: halves([4]) gives 2, where (halves, number) is needed." in say(capsys, lambda numbers: 2)


def test_no_inputs_are_drawn_for_an_answer_that_is_wrong_without_them(capsys):
    assert "seed" not in say(capsys, lambda numbers: ([], 0))
    said = say(capsys, lambda numbers: (halves(numbers)[0], min(len(numbers), max(numbers) // 4 or 1)), seed=3)
    assert "seed 3" in say(capsys, lambda numbers: halves(numbers) if numbers[0] < 9 else ([0], 1), seed=3), said


def test_the_inputs_stay_as_they_are(capsys):
    def using_up(numbers):
        return [numbers.pop(0) // 2 for _ in range(len(numbers))], 1 + len(numbers)

    assert "number: halves([2, 6, 8]) gives ([1, 3, 4], 1)" in say(capsys, using_up)


@pytest.mark.parametrize(
    "answer, words", [((2, 1), "halves is (2, 1), a tuple, where a function is needed"), (None, "NoneType")]
)
def test_a_name_that_means_something_else_by_now(capsys, answer, words):
    assert words in say(capsys, answer)


class Base:
    pass


class Doubler(Base):
    def double(self, x):
        return 2 * x


@exercise("2.2", points=1, solution=Doubler, mistakes=[("triple", "you triple", ("2 *", "3 *"))])
def check_2_2(c, answer):
    runs = c.cases("it runs", answer, [1, 5], behave=lambda answer, case: answer().double(case))
    c.true("doubled", [run.got for run in runs] == [run.want for run in runs], "wrong")


def test_an_answer_may_be_a_class(capsys):
    assert "1 of 1" in say(capsys, Doubler, check_2_2)
    assert "most likely: you triple." in say(capsys, check_2_2.twin(check_2_2.mistakes[0]), check_2_2)
    assert "Doubler is 3, an int, where a class is needed" in say(capsys, 3, check_2_2)
    assert "Doubler is no Base: begin it with `class Doubler(Base)`" in say(capsys, type("Doubler", (), {}), check_2_2)


def test_a_stub_is_not_attempted_and_explained_by_nothing(capsys):
    def stub(numbers):
        raise NotImplementedError("2.1: halve them")

    said = say(capsys, stub)
    assert "to do  it runs: not written yet (halve them)." in said and "most likely" not in said


def test_an_endless_loop_is_stopped_at_its_line(capsys):
    names, source = {}, "def halves(numbers):\n    while numbers:\n        pass"
    file = "/tmp/ipykernel_1/endless.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), names)
    said = say(capsys, names["halves"])
    assert "a loop never ends, or far too late: your code was stopped after 200,000 lines at line" in said


def test_a_mistake_of_one_group_of_cases_is_told_for_its_own_lines(capsys):
    @exercise("2.1", points=2, solution=halves, mistakes=[("doubles", "you double", ("// 2", "* 2"))])
    def two_groups(c, answer):
        c.true("first", c.cases("small", answer, [([0],)])[0].got[0] == [0], "wrong")
        runs = c.cases("large", answer, [([8],)])
        c.agree("second", runs)

    said = say(capsys, lambda numbers: ([2 * number for number in numbers], len(numbers)), two_groups)
    assert "ok     first" in said and said.count("you double") == 1


class Evil:
    def tolist(self):
        raise RuntimeError("no")

    __repr__ = tolist


def test_a_value_that_cannot_be_compared_costs_no_more_than_its_line(capsys):
    said = say(capsys, lambda numbers: (Evil(), len(numbers)))
    assert said.startswith("2.1: "), said


def scaled(x, factor):
    """x times factor, and the number of rows."""
    return x * factor, len(x)


def summed(x, factor):
    return sum([x] * factor), len(x)


def draw_tensors(random):
    draw = torch.Generator().manual_seed(random.randrange(2**32))
    return [(torch.randn(random.randint(2, 5), 6, generator=draw), 7)]


@exercise(
    "2.3",
    points=2,
    solution=scaled,
    mistakes=[
        ("plus", "you add", ("x * factor", "x + factor")),
        ("columns", "you count columns", ("len(x)", "x.shape[1]")),
    ],
)
def check_2_3(c, answer):
    runs = c.cases("it runs", answer, [(torch.full((2, 6), 0.1), 7)], drawn=draw_tensors)
    c.agree("product", runs, part=0)
    c.agree("rows", runs, part=1)


def test_tensors_are_drawn_compared_nearly_and_told_by_their_shape(capsys):
    assert not torch.equal(summed(torch.full((2, 6), 0.1), 7)[0], scaled(torch.full((2, 6), 0.1), 7)[0])
    assert "2 of 2 points (inputs drawn from seed 5)" in say(capsys, summed, check_2_3, seed=5)
    for seed in range(3):
        for mistake in check_2_3.mistakes:
            assert mistake.sentence in say(capsys, check_2_3.twin(mistake), check_2_3, seed=seed)
    said = say(capsys, lambda x, factor: (x * factor + (x > 0.2) * 1e-3, len(x)), check_2_3, seed=5)
    assert "product: scaled(<Tensor of shape [" in said and "goes wrong first at index" in said and "most" not in said
    assert "2 of 2" not in say(capsys, lambda x, factor: ((x * factor)[:, :5], len(x)), check_2_3)


@pytest.mark.parametrize(
    "one, two, is_close",
    [
        (0.1 + 0.2, 0.3, True),
        (float("nan"), float("nan"), True),
        (1_000_000, 1_000_001, False),
        ([1, [2.0]], [1, [2.0000001]], True),
        ([1], [1, 2], False),
        ("a", 1, False),
        (float("inf"), float("inf"), True),
    ],
)
def test_numbers_are_close_as_sums_in_another_order_are(one, two, is_close):
    assert close(one, two) is is_close


def test_a_diagnosis_that_takes_too_long_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr(exercising, "PATIENCE", 0)
    said = say(capsys, check_2_1.twin(check_2_1.mistakes[0]))
    assert "most likely" not in said and "wrong  halves" in said


class Odd:
    """Refuses to be looked at."""

    def __repr__(self):
        raise ValueError("no")

    __eq__ = __len__ = __iter__ = __bool__ = tolist = __repr__
    __hash__ = None


def around(numbers):
    numbers.append(numbers)
    return numbers, 1


def deep(numbers):
    return deep(numbers)


def raising(error):
    def answer(numbers):
        raise error

    return answer


ODD = {
    "refuses": lambda numbers: (Odd(), Odd()),
    "is odd": lambda numbers: Odd(),
    "holds itself": around,
    "never ends": deep,
    "a generator": lambda numbers: (number for number in numbers),
    "a class": Odd,
    "an instance": Odd(),
    "other arguments": lambda: 1,
    "a huge number": lambda numbers: ([10**5000], 1),
    "its own kind of end": raising(type("End", (BaseException,), {})("enough")),
    "an exit": raising(SystemExit(1)),
    "a stop": raising(StopIteration()),
    "an end of a generator": raising(GeneratorExit()),
    "an error without words": raising(KeyError()),
    "the words of a stub": raising(NotImplementedError("2.1: ")),
    "half a character": lambda numbers: ("\ud800", 1),
    "an error with half a character": raising(ValueError("\ud800")),
    "a tensor": lambda numbers: torch.tensor([numbers, numbers]),
    "tensors that learn": lambda numbers: (torch.ones(2, requires_grad=True), torch.tensor(1.0, requires_grad=True)),
    "a module": pytest,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_a_sentence_and_no_points(monkeypatch, name):
    said = []
    monkeypatch.setattr("tinyengine.course.checks.publish", lambda text: said.append(text))
    check_2_1(ODD[name])
    [text] = said
    assert text.startswith("2.1: ") and not text.startswith("2.1: 3") and len(text.splitlines()) > 1, text
    assert max(map(len, text.splitlines())) < 1200
    text.encode()
