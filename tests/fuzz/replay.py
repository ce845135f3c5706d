"""Give a target inputs that are kept in files, without a fuzzer: to see a finding again, or to measure coverage.

python -m tests.fuzz.replay TARGET FILE_OR_FOLDER...
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tests.fuzz.targets import TARGETS


def main() -> int:
    """1 if an input broke something, with the traceback on standard error."""
    name, *paths = sys.argv[1:]
    broken = 0
    for path in map(Path, paths):
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            try:
                TARGETS[name].check(file.read_bytes())
            except Exception:  # noqa: BLE001 - any is a finding
                broken += 1
                sys.stderr.write(f"{file}\n{traceback.format_exc()}\n")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
