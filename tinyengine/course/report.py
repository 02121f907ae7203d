"""A scorecard as people and machines read it: a table in the terminal, JUnit XML, and the table of progress."""

import time
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"passed": "green", "partial": "yellow", "not attempted": "dim"}  # every other state is red


def console() -> Console:
    """Colours on a terminal, plain text of a fixed width into a file or a pipe."""
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=100)


def print_scorecard(card: dict, saved: float) -> None:
    """One row per exercise with its reasons below it, then the total; `saved` tells a learner who forgot to save."""
    screen = console()
    screen.print(Text(f"{card['notebook']}, as saved at {time.strftime('%H:%M:%S', time.localtime(saved))}"))
    table = Table(show_lines=True)
    table.add_column("exercise", overflow="fold")
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("state and reasons", overflow="fold", ratio=1)
    for exercise in card["exercises"]:
        state = Text(exercise["status"], style=STYLES.get(exercise["status"], "red"))
        for message in exercise["messages"]:
            state.append(f"\n- {message}", style="default")
        name = f"{exercise['id']} {exercise['title']}".strip()
        table.add_row(Text(name), f"{exercise['points']}/{exercise['max_points']}", state)
    screen.print(table)
    for message in card["messages"]:
        screen.print(Text(f"note: {message}"))
    screen.print(f"total: {card['points']} of {card['max_points']} points", style="bold")
    for sentence in after(card):
        screen.print(Text(sentence))


def after(card: dict) -> list[str]:
    """What the learner has won, and where it goes on."""
    kept = card.get("kept", [])
    parts = "a part of your engine, in" if len(kept) == 1 else "parts of your engine, in"
    sentences = [f"{', '.join(kept)}: {parts} work/engine/."] if kept else []
    if card["points"] < card["max_points"] or "next" not in card:
        return sentences
    last = f"Next: {card['next']}" if card["next"] else "That was the last lesson that is written."
    return [f"Well done: all {card['max_points']} points.", *sentences, last]


def print_progress(rows: list[dict]) -> None:
    """One row per exercise notebook that was started."""
    screen = console()
    table = Table()
    for column, side in (("notebook", "left"), ("exercises passed", "right"), ("points", "right"), ("note", "left")):
        table.add_column(column, justify=side)
    for row in rows:
        table.add_row(
            Text(row["notebook"]),
            f"{row['passed']}/{row['exercises']}",
            f"{row['points']}/{row['max_points']}",
            Text(row["note"]),
        )
    screen.print(table)
    points, most = (sum(row[key] for row in rows) for key in ("points", "max_points"))
    screen.print(f"total: {points} of {most} points", style="bold")


def junit(card: dict) -> str:
    """One test case per exercise: skipped when not attempted, an error when it could not be judged, else a failure."""
    kinds = {"failed": "failure", "partial": "failure", "not attempted": "skipped"}
    count = {"failure": 0, "skipped": 0, "error": 0}
    suite = ElementTree.Element("testsuite", name=card["notebook"])
    for exercise in card["exercises"]:
        name = f"{exercise['id']} {exercise['title']}".strip()
        case = ElementTree.SubElement(suite, "testcase", classname=card["notebook"], name=name)
        if exercise["status"] != "passed":
            kind = kinds.get(exercise["status"], "error")
            count[kind] += 1
            message = f"{exercise['status']}: {exercise['points']} of {exercise['max_points']} points"
            ElementTree.SubElement(case, kind, message=message).text = "\n".join(exercise["messages"])
    suite.attrib.update(
        tests=str(len(card["exercises"])),
        failures=str(count["failure"]),
        errors=str(count["error"]),
        skipped=str(count["skipped"]),
    )
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
