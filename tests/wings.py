"""Delete each wing in a copy of the tree, and see that the rest stands: `python -m tests.wings [--whole] [--write]`.

A wing is a folder below `aggregator/wings/` or `modelserver/wings/`. Removed with it are its tests, in folders of its
path below `tests/*/`, and its registry lines: the imports of it from outside, and the table lines that use their names.
A wing that imports another goes with it.
In pages the links to its files become plain text.
`loadtest/` stands above both and may simulate a wing: its files that cannot do without one go with it, and their tests.
The quick form checks that every file parses, that nothing undefined or missing is named, that the layers hold and
that every module imports; `--whole` runs mypy too, and the unit tests that the removal may touch (tests/standing.py).
`--write` puts prices into docs/architecture.md.
"""

import argparse
import ast
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.standing import PRODUCT, YARD, Copy, missing, sources

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/architecture.md")
BEGIN, END = "<!-- prices: python -m tests.wings --write -->", "<!-- end of prices -->"
PROCESSES = ("aggregator", "modelserver")
_CONTRACTS = Path("pyproject.toml")
_METRIC = re.compile(r"\bInstrument\(|\.(?:counter|histogram)\(")
_SETTING = re.compile(r"^    \w+: .*= ?(?:Field\(|\w+\()", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wing:
    """A capability in one folder; `registry` are the lines outside of it, `FILE:LINE`, that go with it.

    `above`: the folders of wings that build upon it, and go with it too.
    """

    folder: Path
    registry: tuple[tuple[Path, int], ...]
    above: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def module(self) -> str:
        return ".".join(self.folder.parts)

    def tests(self, root: Path) -> Iterator[Path]:
        """The folders of its tests."""
        for suite in sorted((root / "tests").iterdir()):
            if (suite / self.folder).is_dir():
                yield (suite / self.folder).relative_to(root)


class Woven(Exception):
    """A wing cannot be removed by its folder and registry lines."""


def wings(root: Path = ROOT) -> list[Wing]:
    """Every wing, with its registry lines. Raises Woven."""
    folders = [
        folder.relative_to(root)
        for process in PROCESSES
        for folder in sorted((root / process / "wings").glob("*/"))
        if (folder / "__init__.py").is_file()
    ]
    above = {
        folder: tuple(other for other in folders if other != folder and _uses(root, other, folder))
        for folder in folders
    }
    return [Wing(folder, tuple(_registry_lines(root, folder, above[folder])), above[folder]) for folder in folders]


def _uses(root: Path, folder: Path, other: Path) -> bool:
    """Whether a wing imports another."""
    module = f"from {'.'.join(other.parts)}."
    return any(module in (root / file).read_text(encoding="utf-8") for file in sources(root, [str(folder)]))


def _registry_lines(root: Path, folder: Path, above: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """The lines that name a wing from outside. Raises Woven where one of the product is part of a longer statement."""
    module = ".".join(folder.parts)
    for number, line in enumerate((root / _CONTRACTS).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip().startswith(f'"{module}.'):
            yield _CONTRACTS, number
    suites = [Path(), *(Path("tests") / suite.name for suite in (root / "tests").iterdir())]
    own = {suite / each for suite in suites for each in (folder, *above)}
    for file in sources(root, (*PRODUCT, "tests")):
        text = (root / file).read_text(encoding="utf-8")
        if module in text and not own & {*file.parents}:
            yield from ((file, number) for number in _naming(file, text, module))
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip().startswith(f'"{module}.') and line.endswith('",'):
                    yield file, number


def _naming(file: Path, text: str, module: str) -> Iterator[int]:
    """The lines of a file that import a wing or use what they import; of a test, with the function around them."""
    tree, lines = ast.parse(text), text.splitlines()
    fields, own = set(_fields(tree)), re.compile(rf"(?:tests\.\w+\.)?{re.escape(module)}(?:\.|$)")
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and own.match(node.module or "")]
    for node in imports:
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
    bound = {alias.asname or alias.name for node in imports for alias in node.names}
    for used in ast.walk(tree):
        if not isinstance(used, ast.Name) or used.id not in bound:
            continue
        line = lines[used.lineno - 1].strip()
        if element := _element_around(tree, lines, used):
            yield from element
        elif _is_element(line) or used.lineno in fields:
            yield used.lineno
        elif file.parts[0] == "tests":
            yield from _statement_around(tree, used)
        else:
            raise Woven(f"{file}:{used.lineno}: {line}: is no line of a table")


def _element_around(tree: ast.Module, lines: Sequence[str], inner: ast.expr) -> range | None:
    """The lines of the element of a table that a node is or is in; None where others share its lines.

    A table is a list, a set, a dict, or a tuple with a name; tuples within are its rows.
    """
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)}
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Set | ast.Dict) or (isinstance(node, ast.Tuple) and node in named)
        if node.lineno < inner.lineno <= (inner.end_lineno or 0) < (node.end_lineno or 0)
    ]
    if not around:
        return None
    table = max(around, key=lambda node: node.lineno)
    ends = table.values if isinstance(table, ast.Dict) else table.elts
    begins = [key or end for key, end in zip(table.keys, ends, strict=True)] if isinstance(table, ast.Dict) else ends
    for begin, end in zip(begins, ends, strict=True):
        first, last = begin.lineno, end.end_lineno or end.lineno
        if first <= inner.lineno <= last and _is_element("\n".join(lines[first - 1 : last]).strip()):
            return range(first, last + 1)
    return None


def _fields(tree: ast.Module) -> Iterator[int]:
    """The lines of the fields of classes, where each is on one line: the groups of settings are a table too."""
    for each in tree.body:
        for field in each.body if isinstance(each, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign) and field.lineno == field.end_lineno:
                yield field.lineno


def _statement_around(tree: ast.Module, inner: ast.Name) -> range:
    """The lines of the top-level statement that a name is part of."""
    for node in tree.body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        last = node.end_lineno or node.lineno
        if first <= inner.lineno <= last:
            return range(first, last + 1)
    raise AssertionError(f"a bug: line {inner.lineno} is in no statement")


def _is_element(line: str) -> bool:
    """Whether a line that ends in a comma is an element of a table by itself, so that the rest parses without it."""
    if not line.endswith(","):
        return False
    for table in (f"[{line}]", f"{{{line}}}", f"f({line})"):
        try:
            ast.parse(table)
        except SyntaxError:
            continue
        return True
    return False


def without(gone_wings: Sequence[Wing], copy: Path) -> set[Path]:
    """Make `copy` the tree less these wings; the files that are gone or changed there.

    It may hold the tree without others, of which little is copied then.
    """
    listed = subprocess.run(
        ("git", "ls-files", "-co", "--exclude-standard", "-z"), cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    gone = {folder for wing in gone_wings for folder in (wing.folder, *wing.tests(ROOT))}
    lines = [line for wing in gone_wings for line in wing.registry]
    files = {Path(name) for name in listed if (ROOT / name).is_file()}
    for file in files:
        if not gone & {file, *file.parents}:
            _copy_if_changed(ROOT / file, copy / file)
    for folder in gone:
        shutil.rmtree(copy / folder, ignore_errors=True)  # of the wing before
    for file in {file for file, _ in lines if not gone & {*file.parents}}:  # of the product and of tests
        removed = {number for at, number in lines if at == file}
        kept = (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)
        (copy / file).write_text("".join(line for number, line in enumerate(kept, 1) if number not in removed))
    _unlink_pages(gone_wings, copy)
    subprocess.run(("git", "init", "--quiet"), cwd=copy, check=True)  # the files of the copy are listed by git too
    for file in {file for file, _ in lines if _is_of_another_wing(file, gone)}:
        (copy / file).unlink(missing_ok=True)
    while yard := {file for file, _ in missing(copy) if YARD in file.parts or _is_of_another_wing(file, gone)}:
        for file in yard:
            (copy / file).unlink()
            _unlist(".".join(file.with_suffix("").parts), copy)
            _drop_ignored_imports(copy / _CONTRACTS, ".".join(file.with_suffix("").parts))
    return {file for file in files if not (copy / file).is_file() or not filecmp.cmp(ROOT / file, copy / file)}


def _unlink_pages(gone_wings: Sequence[Wing], copy: Path) -> None:
    for page in copy.rglob("*.md"):
        text = whole = page.read_text(encoding="utf-8")
        for wing in gone_wings:
            text = _unlinked(text, wing.folder)
        if text != whole:
            page.write_text(text, encoding="utf-8")


def _copy_if_changed(file: Path, to: Path) -> None:
    """Copy a file with its time, by which bytecode and types of it go on to hold."""
    about = file.stat()
    if to.is_file() and (to.stat().st_mtime_ns, to.stat().st_size) == (about.st_mtime_ns, about.st_size):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, to)


def _is_of_another_wing(file: Path, gone: Collection[Path]) -> bool:
    """Whether a file is a test of a wing that stays: one that needs both goes with either."""
    return file.parts[0] == "tests" and "wings" in file.parts and not {*gone} & {*file.parents}


def _unlist(module: str, root: Path) -> None:
    """Drop the elements that name a module of the yard: of the yard's tables, and of what tests expect of them."""
    for file in sources(root, (YARD, "tests")):
        text = (root / file).read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        named = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == module]
        gone = {number for node in named for number in _element_around(tree, lines, node) or ()}
        if gone:
            kept = [line for number, line in enumerate(lines, 1) if number not in gone]
            (root / file).write_text("\n".join(kept) + "\n", encoding="utf-8")


def _drop_ignored_imports(contracts: Path, module: str) -> None:
    """Remove the lines of the import contracts that ignore what a module imports: without it, none would match."""
    kept = contracts.read_text(encoding="utf-8").splitlines(keepends=True)
    contracts.write_text("".join(line for line in kept if f'"{module} -> ' not in line), encoding="utf-8")


def _unlinked(text: str, folder: Path) -> str:
    """A page whose links to a wing's files are plain text."""
    return re.sub(rf"\[([^\]]*)\]\((?:\.\./)*{folder}/[^)]*\)", r"\1", text)


def price(wing: Wing) -> str:
    """A wing's row of the table."""

    def lines(*folders: Path) -> int:
        return (
            sum(
                (ROOT / file).read_text(encoding="utf-8").count("\n")
                for file in sources(ROOT, [str(each) for each in folders])
            )
            if folders
            else 0
        )

    texts = [(ROOT / file).read_text(encoding="utf-8") for file in sources(ROOT, [str(wing.folder)])]
    settings = sum(len(_SETTING.findall(text)) for text in texts if "(Group)" in text)
    metrics = sum(len(_METRIC.findall(text)) for text in texts)
    return (
        f"| [`{wing.folder}/`](../{wing.folder}/__init__.py) | {lines(wing.folder)} | {lines(*wing.tests(ROOT))} |"
        f" {settings} | {metrics} | {sum('tests' not in file.parts for file, _ in wing.registry)} |"
    )


def table(found: Sequence[Wing]) -> str:
    """The prices of all wings, as they stand in docs/architecture.md."""
    return "\n".join(
        [
            "| wing | lines | of its tests | settings | metrics | registry lines |",
            "|---|--:|--:|--:|--:|--:|",
            *map(price, found),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wings", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="run mypy and the unit tests of the rest, minutes a wing")
    parser.add_argument("--write", action="store_true", help=f"write the prices into {PAGE}")
    parser.add_argument("wing", nargs="*", help="the names of some wings; all when absent")
    options = parser.parse_args()
    found = wings()
    if options.write:
        before, _, rest = (ROOT / PAGE).read_text(encoding="utf-8").partition(BEGIN)
        (ROOT / PAGE).write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(table(found))
    failures = 0
    with tempfile.TemporaryDirectory(prefix="without-a-wing-") as folder:
        copy = Copy(Path(folder))
        for wing in found:
            if options.wing and wing.name not in options.wing:
                continue
            changed = without([wing, *(other for other in found if other.folder in wing.above)], copy.root)
            problems = [*copy.quick(wing.folder.parts[0]), *(copy.whole(changed) if options.whole else ())]
            failures += bool(problems)
            print(f"without {wing.module}: {'FALLS' if problems else 'stands'}", *problems, sep="\n    ", flush=True)
    print(f"{len(found) - failures} passed, {failures} failed, 0 skipped" if not options.wing else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
