"""Say whether a process is alive and whether it is ready, as Kubernetes asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Check = Callable[[], str | None]
"""Returns why it does not hold, or None when it does. Called on another thread than the event loop's."""


@dataclass(slots=True)
class Health:
    """Named checks behind `/livez` and `/readyz`; without any check a process is alive, but not ready."""

    live: dict[str, Check] = field(default_factory=dict[str, Check])
    ready: dict[str, Check] = field(default_factory=dict[str, Check])

    def liveness(self) -> tuple[bool, str]:
        """Whether to leave the process be, and a line per check."""
        return _result(self.live, "ok")

    def readiness(self) -> tuple[bool, str]:
        """Whether to send it work, and a line per check."""
        if not self.ready:
            return False, "starting\n"
        return _result(self.ready, "ready")


def _result(checks: Mapping[str, Check], word: str) -> tuple[bool, str]:
    lines: list[str] = []
    for name, check in checks.items():
        reason = check()
        lines.append(f"[{'-' if reason else '+'}]{name} {reason or 'ok'}\n")
    failed = any(line.startswith("[-]") for line in lines)
    return not failed, "".join(lines) + ("failed" if failed else word) + "\n"
