"""What was read of a store whose objects never change, within a bound."""

from __future__ import annotations


class Kept:
    """Objects by their paths; the ones kept first go first."""

    def __init__(self, most_bytes: int) -> None:
        self.size_bytes = 0
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[object, int]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._kept

    def get(self, path: str) -> object | None:
        return self._kept.get(path, (None, 0))[0]

    def keep(self, path: str, found: object, size_bytes: int) -> None:
        self.forget(path)
        self._kept[path] = found, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def forget(self, path: str) -> None:
        _, size_bytes = self._kept.pop(path, (None, 0))
        self.size_bytes -= size_bytes
