"""Fuzz one target in a process of its own: libFuzzer ends the process that it runs in.

python -m tests.fuzz.child TARGET LIBFUZZER_OPTION... CORPUS_FOLDER
"""

from __future__ import annotations

import importlib
import sys

import atheris  # type: ignore[import-untyped]  # has no types

_INSTRUMENTED = ["aggregator", "modelserver", "google.protobuf.json_format", "json", "tests.fuzz.broken"]


def main() -> None:
    """Never returns."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_INSTRUMENTED):  # pyright: ignore[reportAttributeAccessIssue] - it has
        module = importlib.import_module(f"tests.fuzz.{'broken' if name == 'broken' else 'targets'}")
    target = module.MIXED if name == "mixed" else module.TARGETS[name]

    def check(data: bytes) -> None:
        target.check(data)

    again = f"{sys.executable} -m tests.fuzz.child {name}"  # how libFuzzer starts itself anew, to merge corpora
    atheris.Setup([again, f"-max_len={target.max_bytes}", *options], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
