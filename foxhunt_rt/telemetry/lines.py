"""The lines and tables that the consoles print: text from facts, shared by the live and the plain view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "about_lines",
    "bars_text",
    "closing_lines",
    "epoch_line",
    "fold_line",
    "fold_table",
    "sparkline",
    "test_line",
]

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The course of some numbers in one line of block characters; empty for fewer than two."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    picked = [values[min(len(values) - 1, int(i * step))] for i in range(min(width, len(values)))]
    picked[-1] = values[-1]
    low, high = min(picked), max(picked)
    if high == low:
        return _BLOCKS[0] * len(picked)
    return "".join(_BLOCKS[int((v - low) / (high - low) * (len(_BLOCKS) - 1))] for v in picked)


def number(value: float | None, digits: int = 2) -> str:
    """With thousands separators; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def bars_text(window: Sequence[int]) -> str:
    """Length of a window."""
    return f"{window[1] - window[0]:,}"


def about_lines(about: dict[str, Any]) -> list[str]:
    """What is trained on what."""
    b = about["bars"]
    net = about["network"]
    return [
        f"bars     {b['bars']:,} bars of {b['clock']}, {b['symbol']}, {b['first'][:10]} to {b['last'][:10]}",
        f"         {about['contract']}",
        f"network  {' -> '.join(map(str, net['widths']))}, {net['parameters']:,} parameters, {net['atoms']} atoms, "
        f"branches {'x'.join(map(str, net['branches']))}",
        f"step     {about['graph']['children']} children, {about['graph']['nodes']} nodes, one launch; "
        f"batch {about['batch']}; {about['device_bytes'] / 2**20:,.0f} MiB on {about['device']}",
        *([f"memory   {about['memory']}"] if about.get("memory") else []),
    ]


def fold_line(fold: int, about: dict[str, Any]) -> str:
    """Windows and support."""
    return (f"fold {fold}   train {bars_text(about['train'])}, validation {bars_text(about['validate'])}, "
            f"test {bars_text(about['test'])} bars; support ±{about['support']['v_max']:.2f} at "
            f"{1.0 / about['support']['reward_scale']:,.4g} a unit")  # fmt: skip


def epoch_line(epoch: int, epochs: int, about: dict[str, Any]) -> str:
    """One epoch in one line."""
    v = about["validation"]
    return (f"  epoch {epoch}/{epochs}  {about['steps']} steps {about['step_us_median']:,.0f} µs  "
            f"{about['bars_seen']:,} bars seen  loss {about['loss']:.4f}  CE {about['ce']:.3f}  "
            f"Q [{about['q_min']:.2f}, {about['q_max']:.2f}]  atoms {about['atom_use']:.0%}  "
            f"validation: net {number(v['net_pnl'], 0)}, Sharpe {number(v['sharpe'])}"
            + ("  best so far" if about["best"] else ""))  # fmt: skip


def test_line(about: dict[str, Any]) -> str:
    """The test window in one line."""
    t = about["test"]
    first, last = about["loss_first"], about["loss_last"]
    return (f"  test       net {number(t['net_pnl'], 0)}  Sharpe {number(t['sharpe'])}  {t['trades']:,} trades  "
            f"costs {number(t['costs'], 0)}  max drawdown {number(t['max_drawdown'], 0)}   "
            f"fixed rows: CE {first['ce']:.3f} -> {last['ce']:.3f}, MSE {first['mse']:.4f} -> {last['mse']:.4f}")  # fmt: skip


def fold_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of folds that a run ends with."""
    header = ["fold", "test from", "net PnL", "Sharpe", "drawdown", "trades", "costs", "random", "hold", "flat"]
    rows = []
    for t in result["test"]:
        base = t["baselines"]
        rows.append([str(t["fold"]), t["first"][:10], number(t["net_pnl"], 0), number(t["sharpe"]),
                     number(t["max_drawdown"], 0), f"{t['trades']:,}", number(t["costs"], 0),
                     number(base["random"]["net_pnl"], 0), number(base["buy_and_hold"]["net_pnl"], 0),
                     number(base["always_flat"]["net_pnl"], 0)])  # fmt: skip
    s = result["summary"]
    if len(rows) > 1:
        rows.append(["mean", "", number(s["net_pnl"]["mean"], 0), number(s["sharpe"]["mean"]), "", "", "", "", "", ""])
        rows.append(["spread", "std. dev.", number(s["net_pnl"]["spread"], 0), number(s["sharpe"]["spread"]),
                     "", "", "", "", "", ""])  # fmt: skip
        rows.append(["worst", f"fold {s['worst_fold']}", number(s["net_pnl"]["worst"], 0), number(s["sharpe"]["worst"]),
                     "", "", "", "", "", ""])  # fmt: skip
    return header, rows


def closing_lines(result: dict[str, Any]) -> list[str]:
    """What holds for the whole run, and what the table cannot say."""
    alarms = ", ".join(f"{name} {count}" for name, count in result["alarms"].items() if count) or "none"
    text = [f"One bar is {result['bar_clock']}. {result['steps']:,} steps of {result['step_us_median']:,.0f} µs, "
            f"{result['launches_per_step']:g} launch a step, {result['guard_events']} guard events, alarms: {alarms}. "
            f"{result['wall_s']:.1f} s."]  # fmt: skip
    reasons = {t["reasons"]["sharpe"] for t in result["test"] if "sharpe" in t["reasons"]}
    text += [f"No Sharpe ratio: {reason}." for reason in sorted(reasons)]
    text += [f"Alarm of a policy: {alarm}." for alarm in result["policy_alarms"]]
    first, last = result["loss_first"], result["loss_last"]
    return [*text, f"Loss on fixed rows, before and after: CE {first['ce']:.3f} -> {last['ce']:.3f}, "
                   f"MSE {first['mse']:.3f} -> {last['mse']:.3f}."]  # fmt: skip
