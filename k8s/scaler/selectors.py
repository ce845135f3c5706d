"""Read a Kubernetes label selector, as the autoscaler sends it with a metric."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SET = re.compile(r"\s*([\w./-]+)\s+(in|notin)\s+\(([^()]*)\)\s*")
_EQUALITY = re.compile(r"\s*([\w./-]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([\w./-]+)\s*")


class BadSelector(ValueError):
    """It is no label selector."""


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels meet all requirements of a selector; an empty one asks for nothing. Raises BadSelector."""
    found = [_meets(requirement, labels) for requirement in _split(selector)]  # all, so that a bad one is never missed
    return all(found)


def equalities(selector: str) -> dict[str, str]:
    """The labels that a selector gives one value each; the rest of it is left out."""
    found = (_EQUALITY.fullmatch(requirement) for requirement in _split(selector))
    return {match[1]: match[3] for match in found if match and match[2] != "!="}


def _split(selector: str) -> list[str]:
    """The requirements; commas inside parentheses belong to a set."""
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()] if selector.strip() else []


def _meets(requirement: str, labels: Mapping[str, str]) -> bool:
    if match := _SET.fullmatch(requirement):
        key, word, values = match.groups()
        among = labels.get(key) in {value.strip() for value in values.split(",")}
        return among == (word == "in")
    if match := _EQUALITY.fullmatch(requirement):
        key, sign, value = match.groups()
        return (labels.get(key) == value) == (sign != "!=")
    if match := _EXISTS.fullmatch(requirement):
        absent, key = match.groups()
        return (key in labels) == (not absent)
    raise BadSelector(f"{requirement!r} is no requirement of a label selector")
