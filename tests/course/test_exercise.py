"""An exercise away from its notebook: its twins, and the mistake that is named when one explains all that was seen."""

import linecache

import pytest

from tinyengine.course.exercise import exercise


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
    assert "a loop never ends, and your code was stopped after 200,000 lines at line" in say(capsys, names["halves"])


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
