"""Fuzz one target in a process of its own: libFuzzer ends the process that it runs in.

python -m tests.fuzz.child TARGET LIBFUZZER_OPTION... CORPUS_FOLDER
python -m tests.fuzz.child TARGET FINDING
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped]  # has no types

_INSTRUMENTED = ["aggregator", "modelserver", "google.protobuf.json_format", "json"]


def main() -> None:
    """Never returns."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_INSTRUMENTED):  # pyright: ignore[reportAttributeAccessIssue] - it has
        from tests.fuzz.targets import MIXED, TARGETS  # noqa: PLC0415 - instrumented as it is imported
    target = MIXED if name == "mixed" else TARGETS[name]

    def check(data: bytes) -> None:
        target.check(data)

    again = f"{sys.executable} -m tests.fuzz.child {name}"  # how libFuzzer starts itself anew, to merge corpora
    atheris.Setup([again, f"-max_len={target.max_bytes}", *options], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
