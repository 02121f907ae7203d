"""The README's table of the house: every file has one place, and the lines are about those that there are."""

import re
from collections import Counter
from pathlib import Path

from tinyengine.bench import rooms

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_file_of_the_package_is_in_one_room():
    placed = Counter(path for _, modules, _ in rooms.ROOMS for path in rooms.files(modules))
    assert set(placed) == set(rooms.PACKAGE.rglob("*.py")) and set(placed.values()) == {1}


def test_the_readme_has_every_room_and_about_its_lines():
    """Within a tenth or 30 lines: a change of the code need not write the table anew, many changes must."""
    table = README.split("<!-- rooms -->")[1].split("<!-- /rooms -->")[0]
    told = {
        name: int(lines.replace(",", ""))
        for name, lines in re.findall(r"^\| ([\w /]+) \|.*\| ([\d,]+) \|", table, re.M)
    }
    now = {name: rooms.lines(rooms.files(modules)) for name, modules, _ in rooms.ROOMS}
    assert told.keys() == now.keys()
    assert [name for name in now if abs(told[name] - now[name]) > max(30, now[name] / 10)] == []
