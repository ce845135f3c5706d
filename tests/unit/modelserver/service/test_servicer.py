"""What a batch on the wire says of itself decides with which others it shares a step; what is served is told whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from modelserver.model_files import ModelFiles
from modelserver.profile.measure import Profile, ProfileOwner, known
from modelserver.service.description import Description, describe
from tests.support.fake_step_engine import facts_of

FILES = ModelFiles(Path("m"), "r1", {}, "f1", True, "q: ", "d: ", False, (), 1000, 2, 20)
FACTS = facts_of()


def profile(max_tokens: int = 1024) -> Profile:
    owner = ProfileOwner("m", "r1", "float32", "direct", "0.32", "cpu")
    return known(lambda tokens: max(0.010, 0.004 + 2e-5 * tokens), owner, max_tokens)


def description(measured: Profile | None = None) -> Description:
    return describe("m", FACTS, FILES, measured, "instance-1")


def test_the_published_profile_names_its_rule_and_how_far_was_measured() -> None:
    """Without them a saturation point means nothing to who reads it."""
    for max_tokens in (512, 1024):
        measured = profile(max_tokens)
        told = description(measured).message.profile
        assert (told.rule, told.max_tokens) == ("hinge", max_tokens)
        assert told.saturation_point == measured.curve.saturation_point
        assert (told.floor_s, told.fixed_s) == (measured.curve.floor_s, measured.curve.fixed_s)
        assert told.per_token_s == measured.curve.per_token_s
        assert [(point.step_tokens, point.step_duration_s) for point in told.points] == list(measured.points)
        assert told.measured_at == measured.measured_at


@pytest.mark.parametrize(
    ("is_matryoshka", "named", "told"), [(False, (), []), (True, (), [1, 2]), (True, (1,), [1]), (False, (1,), [1])]
)
def test_a_model_has_the_sizes_that_its_files_name_or_all_where_they_name_none(
    is_matryoshka: bool, named: tuple[int, ...], told: list[int]
) -> None:
    files = dataclasses.replace(FILES, is_matryoshka=is_matryoshka, matryoshka_dimensions=named)
    assert list(describe("m", FACTS, files, None, "i").message.matryoshka_dimensions) == told
