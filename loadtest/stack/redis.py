"""Run a Redis on this machine, which keeps its data through a crash: `redis-server` of the system's package.

Data stays in the folder, so a server that starts there again goes on where it stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from typing_extensions import override

from loadtest.stack.child import Child
from loadtest.stack.errors import StackError
from loadtest.stack.part import Part
from loadtest.stack.ports import free_ports

_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
UNSYNCED = {"appendfsync": "no"}
"""For tests that crash no machine: what a killed server wrote, the kernel has, and no client waits for a busy disk."""


class RedisServer(Part):
    """One server; `settings` are lines of redis.conf over the defaults here: each write is on the disk."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        log_file: Path | None = None,
    ) -> None:
        self.port = port or free_ports(1)[0]
        super().__init__("Redis", f"Port {self.port} may be taken, or the data in {folder} damaged.")
        self.folder = folder
        self.settings = {**_DURABLE, **(settings or {})}
        self.options: tuple[str, ...] = ()
        self._log_file = log_file or folder / "redis.log"

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"localhost:{self.port}"

    def client(self) -> Any:
        """A blocking client."""
        return redis.Redis(port=self.port)

    @override
    def _spawn(self) -> Child:
        program = shutil.which("redis-server")
        if program is None:
            raise StackError(
                "no redis-server is installed: install the system package redis-server, or name your Redis"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder.resolve()), "save": '""'}
        file = self.folder / "redis.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in (lines | self.settings).items()))
        return Child(self.name, [program, str(file), *self.options], self._log_file)

    @override
    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
