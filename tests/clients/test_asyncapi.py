"""AsyncAPI's own parser takes docs/asyncapi.yaml, with the references in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PARSER = "@asyncapi/parser@3.6.6"
PROGRAM = """
import { readFileSync } from "fs";
import { Parser } from "@asyncapi/parser";
const { document, diagnostics } = await new Parser().parse(readFileSync(0, "utf-8"));
const found = diagnostics.filter((each) => each.severity < 2).map((each) => `${each.path.join(".")}: ${each.message}`);
console.log(JSON.stringify([found, document ? document.allOperations().length : 0]));
"""
PAGE = Path("docs/asyncapi.yaml")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asyncapi")
    (folder / "package.json").write_text("{}")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", PARSER], cwd=folder, check=True)
    file = folder / "parse.mjs"
    file.write_text(PROGRAM)
    return file


def parsed(program: Path, text: str) -> tuple[list[str], int]:
    """Its errors and warnings, and how many operations it has."""
    done = subprocess.run(["node", program], input=text, capture_output=True, text=True, check=True)
    found, operations = json.loads(done.stdout)
    return found, operations


@pytest.mark.timeout(600)  # what is downloaded the first time
def test_the_parser_finds_nothing_wrong(program: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert parsed(program, text) == ([], 6)
    wrong, _ = parsed(program, text.replace("action: receive", "action: take", 1))
    assert wrong
