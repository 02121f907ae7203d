"""The bits of floats that lesson 06 shows."""

import pytest
import torch

from tinyengine.course import bits as looked_at
from tinyengine.course.bits import moved, other_answers, parts, show_bits, steps

WIDTHS = {torch.float32: (8, 23), torch.bfloat16: (8, 7), torch.float16: (5, 10)}


@pytest.mark.parametrize("dtype, widths", WIDTHS.items())
def test_a_float_is_its_sign_exponent_and_fraction(dtype, widths):
    for number in (1.0, -2.5, 0.1, 300.0, -0.0):
        x = torch.tensor(number, dtype=dtype)
        sign, exponent, fraction = parts(x)
        assert (len(exponent), len(fraction)) == widths
        bias, size = 2 ** (widths[0] - 1) - 1, 2 ** widths[1]
        whole = 0 if number == 0 else 2.0 ** (int(exponent, 2) - bias) * (1 + int(fraction, 2) / size)
        assert (-1) ** int(sign) * whole == x.item()


def test_moved_counts_bits_and_not_values():
    a = torch.tensor([1.0, 0.0, torch.nan, 3.0])
    b = torch.tensor([1.0, -0.0, torch.nan, 3.0000002])
    assert moved(a, b) == 2 and moved(a, a.clone()) == 0


def test_steps_are_floats_between_two_numbers():
    one = torch.tensor(1.0)
    assert steps(one, torch.nextafter(one, torch.tensor(2.0))) == 1
    assert steps(one, torch.tensor(2.0)) == 2**23
    assert steps(torch.tensor(-0.0), torch.tensor(0.0)) == 0
    tiny = torch.nextafter(torch.tensor(0.0), one)
    assert steps(-tiny, tiny) == 2
    assert steps(torch.tensor(-1.0).bfloat16(), torch.tensor(-2.0).bfloat16()) == 2**7


def test_show_bits_marks_the_bits_that_moved(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(looked_at, "publish", lambda plain, **rich: shown.append((plain, rich["text/html"])))
    show_bits({"alone": torch.tensor(1.0), "in a batch": torch.tensor(1.0000001), "again": torch.tensor(1.0)})
    [(plain, rich)] = shown
    assert plain.splitlines() == [
        "alone                1  0 01111111 00000000000000000000000",
        "in a batch  1.00000012  0 01111111 00000000000000000000001  1 step away",
        "again                1  0 01111111 00000000000000000000000  the same bits",
    ]
    assert rich.count(looked_at.MOVED) == 2  # one bit, and the legend


def test_show_bits_wants_one_dtype():
    with pytest.raises(ValueError, match="use one"):
        show_bits({"a": torch.tensor(1.0), "b": torch.tensor(1.0).bfloat16()})


def test_other_answers_say_where_they_part():
    rows = other_answers([[1, 2, 3], [4, 5], [6]], [[1, 2, 3], [4, 7], [6, 8]])
    assert [(row["request"], row["equal tokens"]) for row in rows] == [("r1", 1), ("r2", 1)]
    assert rows[0]["then, alone"] == "5" and rows[0]["then, in the batch"] == "7"
