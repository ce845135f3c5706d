"""Engines that generate, and embed beside it, give what vLLM and transformers do, on both of vLLM's model runners.

The first one is that of CPUs; of the second one, that of GPUs, the kernels are interpreted here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.patience import patient

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TOLERANCE = 1e-5
V1, V2 = ("qwen2", "uncached", "llama", "mistral"), ("llama",)
"""Qwen2 pools by the last token, Mistral by the first, Llama by the mean (v2: the last) and through a LoRA adapter."""
MIXED = (*(f"{family} on v1" for family in V1), *(f"{family} on v2" for family in V2))
CASES = (
    *("greedy", "top_k of 1", "top_p of almost 0", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "ignore_eos", "logprobs", "stop", "stop and min_tokens", "one token"),
    *("stop_token_ids", "stop_token_ids and min_tokens"),
)
KINDS = ("qwen3", "modernbert")
RUN_MIXED = "tests.integration.modelserver.wings.both.run_mixed"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the labs of both runners wrote; both processes at once."""
    folder = tmp_path_factory.mktemp("labs")
    commands = {
        "v1": (RUN_MIXED, str(folder / "v1"), *V1),
        "v2": ("tests.integration.modelserver.on_runner_v2", RUN_MIXED, str(folder / "v2"), *V2),
    }
    no_compiler = {**os.environ, "CXX": "/nonexistent"}  # as on a machine with the README's packages only
    started = {
        name: subprocess.Popen((sys.executable, "-m", *command), stderr=subprocess.PIPE, text=True, env=no_compiler)
        for name, command in commands.items()
    }
    found: dict[str, Any] = {}
    for name, process in started.items():
        _, errors = process.communicate(timeout=patient(550))
        assert process.returncode == 0, errors[-4000:]
        read = json.loads((folder / name).read_text(encoding="utf-8"))
        found |= {f"{part} on {name}": each for part, each in read.items()}
    return found


@pytest.fixture
def v1(labs: dict[str, Any]) -> Any:
    """What `run_generation` found."""
    return labs["lab on v1"]


@pytest.fixture
def v2(labs: dict[str, Any]) -> Any:
    """What `run_runner_v2` found."""
    return labs["lab on v2"]


@pytest.fixture(params=MIXED)
def mixed(request: pytest.FixtureRequest, labs: dict[str, Any]) -> Any:
    """What `run_mixed` found of one model on one runner."""
    return labs[request.param]


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_gives_what_vllm_gives(v1: Any, name: str) -> None:
    assert len(v1["expected"]) == len(CASES)
    for expected, found in zip(v1["expected"][name], v1["found"][name], strict=True):
        expected_logprobs, found_logprobs = expected.pop("logprobs"), found.pop("logprobs")
        assert found == expected
        assert len(found_logprobs) == len(expected_logprobs)
        for ours, theirs in zip(found_logprobs, expected_logprobs, strict=True):
            assert {token for token, _ in theirs} <= {token for token, _ in ours}
            assert dict(map(tuple, ours)) == pytest.approx(dict(map(tuple, ours)) | dict(map(tuple, theirs)), abs=1e-4)


def test_the_compared_texts_end_in_every_way(v1: Any) -> None:
    first = {name: texts[0] for name, texts in v1["expected"].items()}
    assert [first[name]["cut"] for name in ("greedy", "ignore_eos", "stop_token_ids")] == [False, True, False]
    assert len(first["greedy"]["ids"]) < 12 <= len(first["min_tokens"]["ids"])
    assert all(text["stop"] for text in v1["expected"]["stop"])
    assert len(first["stop_token_ids"]["ids"]) < 8 <= len(first["stop_token_ids and min_tokens"]["ids"])


def test_every_script_comes_as_it_is_however_tokens_cut_its_characters(v1: Any) -> None:
    for script, told in v1["spelled"]:
        assert told == script


def test_a_chat_becomes_the_prompt_that_transformers_makes_of_it(v1: Any) -> None:
    theirs, ours = v1["chats"]
    assert ours == theirs


def test_more_stop_tokens_than_a_runner_has_room_for_are_refused(v1: Any) -> None:
    with_127, with_128 = v1["refused"]
    assert with_127 == ""
    assert "more than 128 stop token ids" in with_128  # the model's own end is one more


def test_an_engine_refuses_what_is_out_of_range_and_no_more(v1: Any) -> None:
    assert {name for name, words in v1["out_of_range"].items() if name not in words} == set()
    assert set(v1["in_range"]) == {""}


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_seeded_text_goes_on_the_same_from_any_cut_and_beside_others(v1: Any, v2: Any, runner: str) -> None:
    seeded = {"v1": v1, "v2": v2["generation"]}[runner]["seeded"]
    assert seeded["resumed"] == [seeded["whole"]] * 3
    assert seeded["beside"] == seeded["whole"]
    assert seeded["other seed"] != seeded["whole"]


def test_a_sequence_whose_turn_is_earlier_takes_the_first_free_place(v1: Any) -> None:
    assert v1["turns"] == ["first", "question", "bulk"]


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_what_an_aborted_sequence_held_is_free_before_the_next_step(v1: Any, v2: Any, runner: str) -> None:
    before, during, after = {"v1": v1, "v2": v2["generation"]}[runner]["freed"]
    assert during < before == after


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_second_runner_embeddings_equal_those_of_transformers(v2: Any, kind: str) -> None:
    assert v2[kind]["runner"].startswith("vllm.v1.worker.gpu.")
    assert v2[kind]["difference"] <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_another_engine_names_the_runner_that_it_needs(v2: Any, kind: str) -> None:
    assert all("VLLM_USE_V2_MODEL_RUNNER=0" in refusal for refusal in v2[kind]["refusals"])


def test_on_the_second_runner_generated_tokens_are_those_of_transformers(v2: Any) -> None:
    assert v2["generation"]["greedy"] == v2["generation"]["expected"]


def test_on_the_second_runner_top_k_and_top_p_leave_the_likeliest_tokens(v2: Any) -> None:
    assert v2["generation"]["truncated"] == [v2["generation"]["greedy"][:4]] * 2


def test_the_engine_of_a_model_server_embeds_on_the_second_runner(v2: Any) -> None:
    assert v2["minilm"] <= TOLERANCE


def test_vectors_of_random_mixes_equal_those_of_transformers(mixed: Any) -> None:
    for mix in mixed["mixes"]:
        assert mix["vectors"] == mix["vectors expected"] > 0
        assert mix["difference"] <= TOLERANCE


def test_generations_of_random_mixes_have_the_tokens_that_they_have_alone(mixed: Any) -> None:
    for mix in mixed["mixes"]:
        assert mix["same"] == mix["generations"] > 0


def test_generations_are_those_of_transformers_without_an_adapter(mixed: Any) -> None:
    for mix in mixed["mixes"]:
        found, expected = mix["likeliest"]
        assert found == expected


def test_the_mixes_share_steps_preempt_and_abort_and_leave_nothing_behind(mixed: Any) -> None:
    mixes = mixed["mixes"]
    assert all(mix["compositions"]["mixed"] for mix in mixes)
    assert sum(mix["compositions"].get("isolated", 0) for mix in mixes)
    assert sum(mix["preempted"] for mix in mixes)
    assert sum(mix["dropped"] for mix in mixes)
    assert not any(mix["held"] for mix in mixes)
    assert not any(mix["failed"] for mix in mixes)


def test_the_self_check_passes(mixed: Any) -> None:
    assert mixed["check"] is None


def test_the_longest_input_is_embedded_in_parts(mixed: Any) -> None:
    longest = mixed["longest"]
    assert longest["tokens"] == 511
    assert longest["steps"] > 1
    assert longest["difference"] <= TOLERANCE


@pytest.mark.parametrize("name", MIXED)
def test_the_model_runner_is_the_one_that_is_named(labs: dict[str, Any], name: str) -> None:
    assert labs[name]["on v2"] is name.endswith("v2")


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_same_engine_pools_by_the_mean_and_by_the_first_token(labs: dict[str, Any], runner: str) -> None:
    for pooling in ("mean", "cls"):
        assert labs[f"llama on {runner}"][f"longest by {pooling}"]["difference"] <= TOLERANCE


def test_a_poisoned_batch_harms_generations_once_and_no_other_batch(mixed: Any) -> None:
    poison = mixed["poison"]
    unavailable = 14
    assert poison["codes"] == [unavailable] * 4  # of the step that all shared; none is a suspect
    assert "poison" in poison["poison"]
    assert len(poison["differences"]) == 2
    assert max(poison["differences"]) <= TOLERANCE
    assert poison["failed"] == ["generation", "isolated"]
    assert poison["ends"] == [0] * 4 + [unavailable] * 4  # resumed, they outlive the step in which it failed alone
    assert poison["resumed"] == 4
