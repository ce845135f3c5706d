"""The figure of a profile: three panels, with the points, the fit, the floor and the saturation point."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from modelserver.profile.figure import Work, draw, flops_per_token
from modelserver.profile.measure import ProfileOwner, known
from protos.modelserver.v1.curve import Rule

OWNER = ProfileOwner("a <model>", "r", "float32", "e", "1", "cpu")
PROFILE = known(lambda tokens: max(0.01, 0.004 + 2e-5 * tokens), OWNER, 1024)


def parts(svg: str, tag: str, kind: str) -> list[ET.Element]:
    root = ET.fromstring(svg)  # noqa: S314 - drawn here
    return [found for found in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}") if found.get("class") == kind]


def test_there_are_three_panels_with_every_point_the_fit_and_the_saturation_point() -> None:
    svg = draw(PROFILE, Work(2e7, 1e13))
    assert len(parts(svg, "circle", "point")) == 3 * len(PROFILE.points)
    assert len(parts(svg, "polyline", "fit")) == len(parts(svg, "line", "mark")) == 3
    assert "MFU, % of 10 TFLOP/s" in svg
    assert f"saturation point {PROFILE.curve.saturation_point} tokens" in svg
    assert "a &lt;model>" in svg


def test_the_floor_is_drawn_in_the_first_panel_where_there_is_one() -> None:
    assert len(parts(draw(PROFILE, None), "line", "floor")) == 1
    assert not parts(draw(known(lambda tokens: 1e-4 * tokens + 0.001, OWNER, 1024), None), "line", "floor")


def test_without_a_peak_the_last_panel_says_so_and_without_weights_it_is_relative() -> None:
    assert "--peak-tflops" in draw(PROFILE, Work(2e7))
    assert "% of the best throughput" in draw(PROFILE, None)


def test_a_saturation_point_beyond_what_was_measured_is_drawn_all_the_same() -> None:
    far = replace(PROFILE.curve, saturation_point=5000, rule=Rule.HINGE)
    assert len(parts(draw(replace(PROFILE, curve=far), None), "line", "mark")) == 3


def test_a_token_costs_twice_the_parameters_that_multiply_it(tmp_path: Path) -> None:
    assert flops_per_token(tmp_path) is None
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "embeddings.word.weight": {"dtype": "F32", "shape": [1000, 8], "data_offsets": [0, 0]},
            "layer.0.weight": {"dtype": "F32", "shape": [8, 32], "data_offsets": [0, 0]},
            "layer.0.bias": {"dtype": "F32", "shape": [32], "data_offsets": [0, 0]},
        }
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert flops_per_token(tmp_path) == pytest.approx(2 * (8 * 32 + 32))
