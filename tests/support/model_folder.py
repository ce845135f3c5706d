"""The JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(folder: Path, name: str, content: Any) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def change(folder: Path, name: str, **entries: Any) -> None:
    """Set entries of a file, which need not be there."""
    file = folder / name
    old = json.loads(file.read_bytes()) if file.exists() else {}
    write(folder, name, {**old, **entries})
