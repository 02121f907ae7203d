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
        """Prints it; a column is never narrower than its longest word, so that it breaks at spaces alone."""
        table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for number, column in enumerate(zip(self.header, *self.rows)):
            longest = max(len(word) for cell in column for word in cell.split())
            justify = "right" if number else "left"
            table.add_column(column[0], justify=justify, vertical="bottom", min_width=longest, no_wrap=not number)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        console.print(self.note + "\n")


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"
