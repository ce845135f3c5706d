"""`python -m helm.generate`: write every generated file; `--check` fails, naming those that differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aggregator.wings.page.runbook import FILE as RUNBOOK
from aggregator.wings.page.runbook import runbook_html
from helm.generate.configuration import configuration_md
from helm.generate.dashboard import dashboard_json
from helm.generate.schema import values_schema

ROOT = Path(__file__).parents[2]
_CHART = Path("helm/tokenbatch")


def _schema_json() -> str:
    return json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n"


FILES: Mapping[Path, Callable[[], str]] = {
    _CHART / "values.schema.json": _schema_json,
    _CHART / "files/dashboard.json": dashboard_json,
    Path("docs/configuration.md"): configuration_md,
    RUNBOOK: runbook_html,
}


def drifted() -> list[Path]:
    return [
        path
        for path, generate in FILES.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != generate()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helm.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args(arguments).check:
        different = drifted()
        sys.stderr.writelines(f"{path} is not what the settings make it: run make chart\n" for path in different)
        return 1 if different else 0
    for path, generate in FILES.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(generate(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
