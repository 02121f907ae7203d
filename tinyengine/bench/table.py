"""What a benchmark tells, once, for a terminal and for a page."""

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """header and rows: text, the first column names the row. note: what was run, and what a column means."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str

    def markdown(self) -> str:
        lines = [self.header, ("---", *["---:"] * (len(self.header) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def show(self, title: str, console: Console):
        """Prints it, every word of a header on a line of its own, so that numbers alone decide how wide it is."""
        table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for index, name in enumerate(self.header):
            justify = "right" if index else "left"
            table.add_column(name.replace(" ", "\n"), justify=justify, vertical="bottom", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        console.print(self.note + "\n")


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"
