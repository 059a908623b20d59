"""The consoles: what they print from facts, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest

from foxhunt_rt.telemetry import LiveConsole, PlainConsole, console_for
from foxhunt_rt.telemetry.lines import closing_lines, fold_table, number, sparkline
from foxhunt_rt.train.progress import Progress

LOSS = {"mse": 0.25, "ce": 3.5}
METRICS = {"net_pnl": -1234.5, "sharpe": None, "trades": 1500, "costs": 99.0, "max_drawdown": 2000.0}
BASELINES = {
    name: {"net_pnl": value} for name, value in (("random", -9e6), ("buy_and_hold", 12.0), ("always_flat", 0.0))
}
RESULT = {
    "test": [{"fold": n, "first": "2024-01-02T00:00", "last": "2024-02-03T00:00", **METRICS, "baselines": BASELINES,
              "reasons": {"sharpe": "1 trading date; daily returns need at least 2"}} for n in (1, 2)],
    "summary": {"net_pnl": {"mean": -1.0, "spread": 2.0, "worst": -1234.5}, "worst_fold": 2,
                "sharpe": {"mean": None, "spread": None, "worst": None}},
    "bar_clock": "8 trades", "steps": 2808, "step_us_median": 512.25, "launches_per_step": 1, "guard_events": 0,
    "alarms": {"edge_mass": 0, "atom_use": 7}, "policy_alarms": ["fold 2: 0.50 trades a bar"], "wall_s": 7.25,
    "loss_first": LOSS, "loss_last": {"mse": 0.2, "ce": 2.5},
}  # fmt: skip
ABOUT = {
    "bars": {"bars": 62500, "clock": "8 trades", "symbol": "ES", "first": "2013-09-01T22:00", "last": "2013-09-03T18:51"},
    "contract": "contract ES", "folds": 3, "epochs": 2, "batch": 64, "device": "a [bold]device[/bold]", "device_bytes": 3 << 20,
    "network": {"widths": [29, 64, 714], "parameters": 52490, "atoms": 51, "branches": [3, 4, 3, 3]},
    "graph": {"children": 7, "nodes": 13},
}  # fmt: skip
FOLD = {
    "train": (0, 100),
    "validate": (110, 150),
    "test": (160, 200),
    "support": {"v_max": 8.0, "v_min": -8.0, "reward_scale": 0.5},
}
EPOCH = {"steps": 468, "step_us_median": 500.0, "bars_seen": 29693, "loss": 0.1, "ce": 3.9, "q_min": -1.0, "q_max": 1.0,
         "atom_use": 0.5, "best": True, "validation": METRICS}  # fmt: skip


def progress(step):
    return Progress(fold=1, folds=3, epoch=2, epochs=2, step=step, steps=468, bars_seen=100 * step, bars=50000, epsilon=0.5,
                    alpha_c51=0.2, step_us=512.0, loss=0.1, ce=3.9, mse=0.2, q_min=-1.5, q_max=2.5, atom_use=0.5,
                    td_error=1.0 / step, lr=1e-3)  # fmt: skip


def play(console):
    console.started(ABOUT)
    console.fold_started(1, FOLD)
    for step in (1, 2, 3):
        console.progressed(progress(step))
    console.epoch_ended(1, 2, EPOCH)
    console.fold_ended(1, {"test": METRICS, "loss_first": LOSS, "loss_last": LOSS, "best_epoch": 1})
    console.ended(RESULT)
    console.close()
    console.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [PlainConsole, LiveConsole])
def test_both_consoles_say_the_same(kind):
    out = Terminal()
    play(kind(out))
    text = out.getvalue()
    for said in ("62,500 bars of 8 trades", "3 MiB on a [bold]device[/bold]", "epoch 2/2", "29,693 bars seen", "best so far",
                 "-1,234", "No Sharpe ratio: 1 trading date", "0.50 trades a bar", "atom_use 7", "One bar is 8 trades", "worst",
                 "CE 3.500 -> 2.500"):  # fmt: skip
        assert said in text, said


def test_the_live_view_shows_the_moment():
    from rich.console import Console

    console = LiveConsole(Terminal())
    console.losses = [3.0, 2.0, 1.0]
    screen = Console(file=io.StringIO(), width=110)
    screen.print(console._view(progress(234)))
    text = screen.file.getvalue()
    for said in (
        "fold 1/3",
        "epoch 2/2",
        "step 702",
        "23,400/50,000",
        "-1.50 to 2.50",
        "512 µs",
        "50%",
        "share of CE 0.2",
    ):
        assert said in text, said


def test_a_file_gets_plain_lines_and_a_terminal_the_live_view():
    assert type(console_for(io.StringIO())) is PlainConsole
    assert type(console_for(Terminal())) is LiveConsole


def test_the_table_fits_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    play(LiveConsole(out))
    table = out.getvalue().split("Test windows")[1]
    assert "…" not in table
    assert "-9,000,000" in table


def test_the_table_has_a_row_a_fold_then_mean_spread_and_worst():
    header, rows = fold_table(RESULT)
    assert [row[0] for row in rows] == ["1", "2", "mean", "spread", "worst"]
    assert {len(row) for row in rows} == {len(header)}
    assert rows[0][3] == "-"
    one = {**RESULT, "test": RESULT["test"][:1]}
    assert [row[0] for row in fold_table(one)[1]] == ["1"]


def test_closing_lines_without_alarms():
    quiet = {**RESULT, "alarms": {"edge_mass": 0}, "policy_alarms": []}
    assert "alarms: none" in closing_lines(quiet)[0]


def test_sparkline_and_numbers():
    assert sparkline([1.0]) == ""
    assert sparkline([0.0, 1.0, 2.0, 3.0]) == "▁▃▅█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert len(sparkline(list(range(1000)), 30)) == 30
    assert number(None) == "-"
    assert number(-1234.567, 1) == "-1,234.6"
