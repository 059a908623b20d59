"""How a run shows itself: plain lines or a live view on the terminal. Observers of `train`; they compute nothing."""

from foxhunt_rt.telemetry.console import LiveConsole, PlainConsole, console_for

__all__ = ["LiveConsole", "PlainConsole", "console_for"]
