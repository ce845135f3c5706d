"""One engine embeds and generates random mixes: vectors as transformers', tokens as those of each generation alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TOLERANCE = 1e-5
V1, V2 = ("qwen2", "uncached", "llama", "mistral"), ("qwen2", "llama")
"""Qwen2 pools by the last token, Mistral by the first, Llama by the mean and through a LoRA adapter."""
NAMES = (*(f"{family} on v1" for family in V1), *(f"{family} on v2" for family in V2))
LAB = "tests.integration.modelserver.run_mixed"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the lab wrote of each model on each runner; both processes at once."""
    folder = tmp_path_factory.mktemp("mixed")
    commands = {
        "v1": (LAB, str(folder / "v1"), *V1),
        "v2": ("tests.integration.modelserver.on_runner_v2", LAB, str(folder / "v2"), *V2),
    }
    started = {
        name: subprocess.Popen((sys.executable, "-m", *command), stderr=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    found: dict[str, Any] = {}
    for name, process in started.items():
        _, errors = process.communicate(timeout=550)
        assert process.returncode == 0, errors[-4000:]
        read = json.loads((folder / name).read_text(encoding="utf-8"))
        found |= {f"{family} on {name}": each for family, each in read.items()}
    return found


@pytest.fixture(params=NAMES)
def lab(request: pytest.FixtureRequest, labs: dict[str, Any]) -> Any:
    """Of one model on one runner."""
    return labs[request.param]


def test_vectors_of_random_mixes_equal_those_of_transformers(lab: Any) -> None:
    for mix in lab["mixes"]:
        assert mix["vectors"] == mix["vectors expected"] > 0
        assert mix["difference"] <= TOLERANCE


def test_generations_of_random_mixes_have_the_tokens_that_they_have_alone(lab: Any) -> None:
    for mix in lab["mixes"]:
        assert mix["same"] == mix["generations"] > 0


def test_generations_are_those_of_transformers_without_an_adapter(lab: Any) -> None:
    for mix in lab["mixes"]:
        found, expected = mix["likeliest"]
        assert found == expected


def test_the_mixes_share_steps_preempt_and_abort_and_leave_nothing_behind(lab: Any) -> None:
    mixes = lab["mixes"]
    assert all(mix["compositions"]["mixed"] for mix in mixes)
    assert sum(mix["compositions"].get("isolated", 0) for mix in mixes)
    assert sum(mix["preempted"] for mix in mixes)
    assert sum(mix["dropped"] for mix in mixes)
    assert not any(mix["held"] for mix in mixes)
    assert not any(mix["failed"] for mix in mixes)


def test_the_self_check_passes(lab: Any) -> None:
    assert lab["check"] is None


def test_the_longest_input_is_embedded_in_parts(lab: Any) -> None:
    longest = lab["longest"]
    assert longest["tokens"] == 511
    assert longest["steps"] > 1
    assert longest["difference"] <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_model_runner_is_the_one_that_is_named(labs: dict[str, Any], name: str) -> None:
    assert labs[name]["on v2"] is name.endswith("v2")


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_same_engine_pools_by_the_first_token(labs: dict[str, Any], runner: str) -> None:
    assert labs[f"llama on {runner}"]["longest by the first token"]["difference"] <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_poisoned_batch_harms_generations_once_and_no_other_batch(labs: dict[str, Any], name: str) -> None:
    poison = labs[name]["poison"]
    unavailable = 14
    assert poison["codes"] == [unavailable] * 4  # of the step that all shared; none is a suspect
    assert "poison" in poison["poison"]
    assert len(poison["differences"]) == 2
    assert max(poison["differences"]) <= TOLERANCE
    assert poison["failed"] == ["generation", "isolated"]
    assert poison["ends"] == [0] * 4 + [unavailable] * 4  # resumed, they outlive the step in which it failed alone
    assert poison["resumed"] == 4
