"""Training on the terminal: a live view where there is one, plain lines where output is kept."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from foxhunt_rt._optional import MissingExtra, require
from foxhunt_rt.telemetry import lines
from foxhunt_rt.train.progress import Observer, Progress

__all__ = ["LiveConsole", "PlainConsole", "console_for"]


def console_for(stream: TextIO | None = None) -> Observer:
    """The live view on a terminal that has one, else plain lines (also without rich)."""
    out = stream or sys.stdout
    if out.isatty():
        try:
            require("rich", "the live view")
            return LiveConsole(out)
        except MissingExtra:
            pass  # plain lines say the same
    return PlainConsole(out)


class PlainConsole(Observer):
    """One line an epoch, and the table at the end. For files, pipes and CI."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.epochs = 0

    def line(self, text: str) -> None:
        """Writes one line at once."""
        print(text, file=self.out, flush=True)

    def started(self, about: dict[str, Any]) -> None:
        self.epochs = about["epochs"]
        for text in lines.about_lines(about):
            self.line(text)

    def fold_started(self, fold: int, about: dict[str, Any]) -> None:
        self.line(lines.fold_line(fold, about))

    def epoch_ended(self, fold: int, epoch: int, about: dict[str, Any]) -> None:
        self.line(lines.epoch_line(epoch, self.epochs, about))

    def fold_ended(self, fold: int, about: dict[str, Any]) -> None:
        self.line(lines.test_line(about))

    def ended(self, result: dict[str, Any]) -> None:
        header, rows = lines.fold_table(result)
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        self.line("")
        for row in [header, *rows]:
            self.line(
                "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
            )
        for text in lines.closing_lines(result):
            self.line(text)


class LiveConsole(PlainConsole):
    """Bars of progress and the numbers of the moment, redrawn a few times a second; finished epochs scroll above."""

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__(out)
        from rich.console import Console
        from rich.live import Live

        self.console = Console(file=self.out, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=8, transient=True)
        self.losses: list[float] = []
        self.folds = 0

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def started(self, about: dict[str, Any]) -> None:
        self.folds = about["folds"]
        super().started(about)
        self.live.start()

    def fold_started(self, fold: int, about: dict[str, Any]) -> None:
        self.losses = []
        super().fold_started(fold, about)

    def progressed(self, progress: Progress) -> None:
        self.losses.append(progress.td_error)
        self.live.update(self._view(progress))

    def _view(self, p: Progress) -> Any:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        done = ((p.fold - 1) * p.epochs + p.epoch - 1) * p.steps + p.step
        top = Table.grid(padding=(0, 1))
        top.add_column(width=20)
        top.add_column(width=26)
        top.add_column()
        for text, at, of, note in (
            (
                f"fold {p.fold}/{p.folds}  epoch {p.epoch}/{p.epochs}",
                done,
                p.folds * p.epochs * p.steps,
                f"step {done:,}",
            ),
            ("bars seen", p.bars_seen, p.bars, f"{p.bars_seen:,}/{p.bars:,}, ε {p.epsilon:.2f}"),
        ):
            top.add_row(text, ProgressBar(total=max(of, 1), completed=at, width=24), note)
        top.add_row("TD error", lines.sparkline(self.losses, 24), f"{p.td_error:.4f}")
        top.add_row("loss", f"{p.loss:.4f}", f"CE {p.ce:.3f}, MSE {p.mse:.4f}")
        top.add_row("Q range", f"{p.q_min:.2f} to {p.q_max:.2f}", f"atoms in use {p.atom_use:.0%}")
        top.add_row("step", f"{p.step_us:,.0f} µs, one launch", f"share of CE {p.alpha_c51:.1f}, rate {p.lr:.2g}")
        return Panel(top, title="foxhunt-rt", title_align="left", border_style="dim")

    def ended(self, result: dict[str, Any]) -> None:
        from rich.table import Table

        self.close()
        header, rows = lines.fold_table(result)
        # No box: ten columns fit in eighty characters only without one.
        table = Table(title=f"Test windows, each touched once; one bar is {result['bar_clock']}", title_justify="left",
                      title_style="italic", box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")  # fmt: skip
        for i, name in enumerate(header):
            table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
        for i, row in enumerate(rows):
            if i == len(result["test"]):
                table.add_row()
            table.add_row(*row)
        self.console.print(table)
        for text in lines.closing_lines(result):
            self.line(text)

    def close(self) -> None:
        """Takes the view off the screen. Idempotent; also needed after an error."""
        self.live.stop()
