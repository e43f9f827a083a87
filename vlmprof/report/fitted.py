"""A table for the terminal that leaves columns out rather than cut numbers short when the screen is narrow."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "FittedTable"]


@dataclass(frozen=True)
class Column:
    title: str
    worth: int = 0
    """The least worth is left out first; 0 never is."""
    left: bool = False


@dataclass
class FittedTable:
    """Rows of texts; what fits is decided when it is shown."""

    columns: Sequence[Column]
    padding: int = 2
    caption: str = ""
    rows: list[Sequence[str | Text]] = field(default_factory=list)

    def add_row(self, *cells: str | Text) -> None:
        """One row, a cell a column."""
        self.rows.append(cells)

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def kept(self, width: int) -> list[int]:
        """Which columns fit into so many cells."""
        wide = [
            max([cell_len(column.title), *(_width(row[index]) for row in self.rows)]) + self.padding
            for index, column in enumerate(self.columns)
        ]
        kept = list(range(len(self.columns)))
        while sum(wide[index] for index in kept) - self.padding > width:
            spare = [index for index in kept if self.columns[index].worth]
            if not spare:
                break
            kept.remove(min(spare, key=lambda index: self.columns[index].worth))
        return kept

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self.kept(options.max_width)
        table = Table(box=None, padding=(0, self.padding, 0, 0), header_style="dim", pad_edge=False)
        for index in kept:
            column = self.columns[index]
            table.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(row[index] for index in kept))
        yield table
        if self.caption:
            yield Text(self.caption, style="dim")
        left_out = [column.title for index, column in enumerate(self.columns) if index not in kept and column.title]
        if left_out:
            yield Text(f"no room for: {', '.join(left_out)}", style="dim")


def _width(cell: str | Text) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)
