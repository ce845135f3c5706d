"""What of a copy of the tree does not stand: names, layers, imports, types and unit tests.

All copies of a run lie at one path, one after the other, with their bytecode and types beside it: what was compiled or
checked of a file holds for the next copy, whose file is the same.
"""

import ast
import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

PRODUCT = ("aggregator", "modelserver", "k8s", "protos", "helm")
YARD = "loadtest"
_SHOWN = 2000  # characters of what a command printed
_STARTED = ("modelserver.__main__", "modelserver.app")
"""Of the model server: most of its other modules import an engine, for 13 seconds."""
_READS = re.compile(r"\b(?:read_text|read_bytes|open|glob|rglob|iterdir|import_module|subprocess|pkgutil|Popen)\b")
"""What may depend on files that are not imported."""
_OF_PAGES = {"test_docs.py", "test_metrics_listed.py"}
"""They hold pages to the code: what the pages say of a wing goes by hand."""
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


@dataclass(frozen=True, slots=True)
class Copy:
    """The checks of a copy in `folder`; each yields what does not stand, in words."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where the tree is copied to."""
        return self.folder / "without"

    def quick(self, process: str) -> Iterator[str]:
        """Names, layers and imports, of the part that lost something: aggregator or modelserver."""
        yield from self._fails(
            sys.executable, "-m", "ruff", "check", "--quiet", "--select", "F", "--ignore", "F401", "."
        )
        yield from (what for _, what in missing(self.root))
        yield from self._fails(f"{sys.prefix}/bin/lint-imports", "--no-cache")
        folders = ("aggregator", "k8s", "protos")
        files = [file for folder in folders for file in sorted((self.root / folder).rglob("*.py"))]
        modules = [".".join(file.relative_to(self.root).with_suffix("").parts) for file in files]
        modules = [module.removesuffix(".__init__") for module in modules if not module.endswith("__main__")]
        yield from self._fails_to_import(modules if process == "aggregator" else _STARTED)

    def whole(self, changed: Collection[Path]) -> Iterator[str]:
        """Types, and the unit tests that may notice what changed."""
        types = self.folder / "mypy"
        if not types.exists() and Path(".mypy_cache").is_dir():
            shutil.copytree(".mypy_cache", types)
        yield from self._fails(sys.executable, "-m", "mypy", "--cache-dir", str(types))
        subprocess.run(("git", "add", "--all"), cwd=self.root, check=True)  # some tests ask what git knows
        if tests := touched(self.root, changed):
            options = ("-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not privileged")
            yield from self._fails(sys.executable, "-m", "pytest", *options, *map(str, tests))

    def _fails(self, *command: str) -> Iterator[str]:
        """What a command prints if it fails."""
        cache = {"PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}
        ended = subprocess.run(
            command,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), **cache},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            yield f"{' '.join(command[1:4])}: {(ended.stdout + ended.stderr).strip()[-_SHOWN:]}"

    def _fails_to_import(self, modules: Sequence[str]) -> Iterator[str]:
        """The error of importing modules, in a fork of this process, which has imported the libraries."""
        import_libraries()
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=self._import, args=(modules, theirs))
        process.start()
        theirs.close()
        try:
            if error := ours.recv():
                yield f"import: {error[-_SHOWN:]}"
        except EOFError:
            process.join()
            yield f"import: the process ended with {process.exitcode}"
        process.join()

    def _import(self, modules: Sequence[str], result: Connection) -> None:
        os.chdir(self.root)
        sys.path.insert(0, str(self.root))
        sys.pycache_prefix = str(self.folder / "bytecode")
        error = ""
        try:
            for module in modules:
                import_module(module)
        except BaseException:  # noqa: BLE001 - it is the result
            error = traceback.format_exc()
        result.send(error)


@cache
def import_libraries() -> None:
    """Import what the aggregator's files import of others at their top, once for all copies."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork has none of the threads that it may wait for
    for file in sources(Path(), ("aggregator", "k8s", "protos")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module and module.split(".")[0] not in {*PRODUCT, YARD, "tests"}:
                    with suppress(ImportError):  # it is told of the copy's
                        import_module(module)
    gc.freeze()


def touched(root: Path, changed: Collection[Path]) -> list[Path]:
    """The unit tests that may have another result than in the whole tree, `changed` less.

    They import, in some steps, a file that differs, or they or what they import of tests reads files of the tree. The
    result of any other follows from files that are the same.
    """
    files = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in _all(root)}
    importers: dict[Path, set[Path]] = {}
    notice: set[Path] = {file for file in changed if (root / file).is_file()}
    for file in files.values():
        text = (root / file).read_text(encoding="utf-8")
        for imported in _imported(text, file):
            parts = imported.split(".")
            for end in range(1, len(parts) + 1):  # an import runs the packages around a module too
                if at := files.get(".".join(parts[:end])):
                    importers.setdefault(at, set()).add(file)
        if file.parts[0] in {"tests", YARD, "helm"} and _READS.search(text):
            notice.add(file)
        for folder in file.parents if file.name.startswith("test_") else ():
            importers.setdefault(folder / "conftest.py", set()).add(file)
    todo = [*notice]
    while todo:
        new = importers.get(todo.pop(), set()) - notice
        notice |= new
        todo += new
    tests = (file for file in notice if file.parts[:2] == ("tests", "unit") and file.name.startswith("test_"))
    return sorted(file for file in tests if file.name not in _OF_PAGES)


def _all(root: Path) -> Iterator[Path]:
    return sources(root, (*PRODUCT, YARD, "tests"))


@cache
def _imported(text: str, file: Path) -> frozenset[str]:
    """The names that a file imports at any depth, or holds in strings as dotted names, as a patch does."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{file}: imports are absolute here"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            found.add(node.value)
    return frozenset(found)


def sources(root: Path, folders: Sequence[str]) -> Iterator[Path]:
    """The Python files of folders that git knows, generated code left out, relative to `root`."""
    listed = subprocess.run(
        ("git", "ls-files", "-co", "--exclude-standard", "--", *folders),
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    for name in sorted(set(listed)):
        if name.endswith(".py") and "_pb2" not in name and (root / name).is_file():
            yield Path(name)


def missing(root: Path) -> Iterator[tuple[Path, str]]:
    """The files that import of the project's own modules what is not there, and the import in words."""
    for file in sorted(sources(root, sorted({*PRODUCT, YARD, "tests"}))):
        for line, module, names in _own_imports((root / file).read_text(encoding="utf-8")):
            at = root.joinpath(*module.split("."))
            own = at.with_suffix(".py") if at.with_suffix(".py").is_file() else at / "__init__.py"
            if not own.is_file() and not at.is_dir():
                yield file, f"{file}:{line}: {module} is gone"
                continue
            defined = _defined(own.read_text(encoding="utf-8")) if own.is_file() else frozenset[str]()
            for name in names:
                inside = at / name
                if name not in defined and not inside.with_suffix(".py").is_file() and not inside.is_dir():
                    yield file, f"{file}:{line}: {module}.{name} is gone"


@cache
def _own_imports(text: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """What a file imports of the project's own modules, generated ones left out: line, module, names."""
    return tuple(
        (node.lineno, node.module, tuple(alias.name for alias in node.names))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and "_pb2" not in node.module
        if node.module.split(".")[0] in {*PRODUCT, YARD, "tests"}
    )


@cache
def _defined(text: str) -> frozenset[str]:
    """The names that a module binds, at any depth of its conditions."""
    return frozenset(_bound(ast.parse(text)))


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
