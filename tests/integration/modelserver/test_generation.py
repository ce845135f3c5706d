"""A real model generates what vLLM's own `LLM` does, for every parameter, and a seeded text goes on the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

_NAMES = (
    *("greedy", "top_k of 1", "top_p of almost 0", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "ignore_eos", "logprobs", "stop", "stop and min_tokens", "one token"),
    *("stop_token_ids", "stop_token_ids and min_tokens"),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the lab wrote."""
    file = tmp_path_factory.mktemp("generation") / "lab.json"
    no_compiler = {**os.environ, "CXX": "/nonexistent"}  # as on a machine with the README's packages only
    command = [sys.executable, "-m", "tests.integration.modelserver.run_generation", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False, env=no_compiler)
    assert file.is_file(), done.stderr[-4000:]
    return json.loads(Path(file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", _NAMES)
def test_every_parameter_gives_what_vllm_gives(lab: Any, name: str) -> None:
    for expected, found in zip(lab["expected"][name], lab["found"][name], strict=True):
        expected_logprobs, found_logprobs = expected.pop("logprobs"), found.pop("logprobs")
        assert found == expected
        assert len(found_logprobs) == len(expected_logprobs)
        for ours, theirs in zip(found_logprobs, expected_logprobs, strict=True):
            assert {token for token, _ in theirs} <= {token for token, _ in ours}
            assert dict(map(tuple, ours)) == pytest.approx(dict(map(tuple, ours)) | dict(map(tuple, theirs)), abs=1e-4)


def test_every_case_is_compared(lab: Any) -> None:
    assert set(lab["expected"]) == set(_NAMES)


def test_every_script_comes_as_it_is_however_its_characters_are_cut_into_tokens(lab: Any) -> None:
    for script, told in lab["spelled"]:
        assert told == script


def test_a_chat_becomes_the_prompt_that_transformers_makes_of_it(lab: Any) -> None:
    theirs, ours = lab["chats"]
    assert ours == theirs


def test_a_seeded_text_goes_on_the_same_wherever_it_was_cut_and_whatever_runs_beside_it(lab: Any) -> None:
    told = lab["seeded"]
    assert told["resumed"] == [told["whole"]] * 3
    assert told["beside"] == told["whole"]
    assert told["other seed"] != told["whole"]


def test_more_stop_tokens_than_a_runner_has_room_for_are_refused(lab: Any) -> None:
    with_127, with_128 = lab["refused"]
    assert with_127 == ""
    assert "more than 128 stop token ids" in with_128  # the model's own end is one more


def test_what_an_aborted_sequence_held_is_free_before_the_next_step(lab: Any) -> None:
    before, during, after = lab["freed"]
    assert during < before == after
