"""What the code uses of vLLM is in the source of both wheels: the one for CPUs, and the one for GPUs, not imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ENGINES = Path("modelserver/engines")
WINGS = Path("modelserver/wings")
TAP = WINGS / "both" / "tap.py"
METADATA = "CommonAttentionMetadata"
GPU_LOCK = Path("requirements/modelserver-gpu.txt")


@pytest.fixture(scope="module")
def gpu_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked wheel for GPUs, unpacked beside everything else."""
    locked = next(
        line.split()[0] for line in GPU_LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("vllm==")
    )
    folder = tmp_path_factory.mktemp("vllm")
    uv = Path(sys.prefix) / "uv" / "bin" / "uv"
    command = (uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", folder, "--no-deps", locked)
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.privileged)])  # it may have to be fetched
def source(request: pytest.FixtureRequest) -> Path:
    """The folder that holds the package `vllm`."""
    if request.param == "gpu":
        wheel: Path = request.getfixturevalue("gpu_wheel")
        return wheel
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


def used() -> dict[str, tuple[str, ...]]:
    """`USED`, read without importing vLLM."""
    tree = _parsed(ENGINES / "vllm_internals.py")
    found = next(node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "USED")
    assert found.value is not None
    read: dict[str, tuple[str, ...]] = ast.literal_eval(found.value)
    return read


def test_every_name_that_is_used_is_in_the_source_with_its_parameters(source: Path) -> None:
    missing = [
        f"{owner}: {name}" for owner, names in used().items() for name in names if not _has(_owner(source, owner), name)
    ]
    assert missing == []


def test_every_attribute_that_the_tap_reads_of_vllm_is_listed() -> None:
    listed = {name.partition("(")[0] for names in used().values() for name in names}
    read = set(_read_of_vllm(_parsed(TAP)))
    assert {"prompt_len", "num_prompt_tokens", "_model_runner_output", "use_ubatching"} <= read
    assert read - listed == set()


def test_every_field_that_is_given_to_the_attentions_metadata_is_listed() -> None:
    calls = (node for node in ast.walk(_parsed(WINGS / "direct" / "engine.py")) if isinstance(node, ast.Call))
    given = [each.arg for node in calls if ast.unparse(node.func) == METADATA for each in node.keywords]
    assert sorted(map(str, given)) == sorted(used()[f"vllm.v1.attention.backend.{METADATA}"])


def test_every_name_that_is_imported_is_in_the_source(source: Path) -> None:
    imported = sorted(set(_imports()))
    missing = [f"{module}: {name}" for module, name in imported if not _offers(source, module, name)]
    assert ("vllm.v1.engine.core", "EngineCore") in imported
    assert missing == []


def test_every_argument_of_the_engine_is_in_the_source(source: Path) -> None:
    given = set(_engine_arguments())
    assert {"model", "block_size", "runner", "max_num_seqs", "cudagraph_capture_sizes", "max_lora_rank"} <= given
    arguments = _owner(source, "vllm.engine.arg_utils.EngineArgs")
    assert [name for name in sorted(given) if not _has(arguments, name)] == []


OF_VLLM = frozenset({"batch", "config", "model", "output", "parallel", "runner", "state", "states"})
"""How `tap.py` calls objects of vLLM's."""
OWN = frozenset({"only_embeddings", "pooled", "pooler"})
"""What it gives the runner itself."""
OF_CONFIGS = frozenset({"cache_config", "model_config", "parallel_config", "to_dict"})
"""Documented parts of vLLM's configuration, and of transformers'."""
OF_TORCH = frozenset({"compute_logits"})
"""Of the model, which each of vLLM's classes defines."""


def _read_of_vllm(tree: ast.Module) -> Iterator[str]:
    """Attributes of variables with these names, at any depth, those that are asked for by name, and declared ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute | ast.Subscript | ast.Call):
                inner = inner.func if isinstance(inner, ast.Call) else inner.value
            if isinstance(inner, ast.Name) and inner.id in OF_VLLM:
                yield from {node.attr} - OWN - OF_CONFIGS - OF_TORCH - {"astype", "get", "__class__"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("_parallel_size"):
            yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            yield from (
                each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Tap"):
            declared = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            yield from declared - OWN - {"step_names"}


def _imports() -> Iterator[tuple[str, str]]:
    for file in Path("modelserver").rglob("*.py"):
        for node in ast.walk(_parsed(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                yield from ((node.module or "", name.name) for name in node.names)


MAKE_ENGINES = frozenset({"_engine_config", "_graphs", "engine_config", "load"})
"""Functions whose mappings are of arguments, but for those inside others."""


def _engine_arguments() -> Iterator[str]:
    """The names that `EngineArgs` is given: keywords of the functions that pass them on, and keys of mappings."""
    generators = (WINGS / wing / "vllm_generator.py" for wing in ("generation", "both"))
    for file in (ENGINES / "core.py", *generators):
        for function in _parsed(file).body:
            made = isinstance(function, ast.FunctionDef) and function.name in MAKE_ENGINES
            made |= isinstance(function, ast.AnnAssign) and ast.unparse(function.target) == "SCHEDULING"
            nodes = list(ast.walk(function))
            inner = {id(value) for node in nodes if isinstance(node, ast.Dict) for value in node.values}
            for node in nodes:
                if isinstance(node, ast.Call) and ast.unparse(node.func) in {"engine_core", "_engine_config"}:
                    yield from (each.arg for each in node.keywords if each.arg is not None)
                elif made and isinstance(node, ast.Dict) and id(node) not in inner:
                    yield from (ast.literal_eval(each) for each in node.keys if isinstance(each, ast.Constant))
                elif made and isinstance(node, ast.Subscript) and ast.unparse(node.value) == "common":
                    yield ast.literal_eval(node.slice)


def _offers(source: Path, module: str, name: str) -> bool:
    if _file(source, f"{module}.{name}"):
        return True
    file = _file(source, module)
    return file is not None and re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) is not None


def _file(source: Path, module: str) -> Path | None:
    path = source.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _owner(source: Path, name: str) -> ast.Module | ast.ClassDef:
    """The module or class of this name."""
    if file := _file(source, name):
        return _parsed(file)
    module, _, kind = name.rpartition(".")
    file = _file(source, module)
    assert file is not None, f"{module} is no module of vLLM's any more"
    return next(node for node in _parsed(file).body if isinstance(node, ast.ClassDef) and node.name == kind)


def _has(owner: ast.Module | ast.ClassDef, wanted: str) -> bool:
    name, bracket, inside = wanted.rstrip(")").partition("(")
    if not bracket:
        return name in _attributes(owner)
    parameters = {each for each in inside.split(", ") if each}
    return any(parameters <= _parameters(node) for node in owner.body if _named(node, name))


def _named(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _parameters(node: ast.stmt) -> set[str]:
    assert isinstance(node, ast.FunctionDef)
    return {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def _attributes(owner: ast.AST) -> set[str]:
    """What a class defines: fields, properties, and what its methods set on `self`."""
    names = {node.name for node in ast.iter_child_nodes(owner) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(owner):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else ()
        )
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else (target,):
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
                    names.add(each.attr)
                elif isinstance(each, ast.Name):
                    names.add(each.id)
    return names


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
