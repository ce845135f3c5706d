"""The names of settings: where each stands, and which one was meant by a name that is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

FAMILY = "TOKENBATCH_"
_PREFIXES = tuple(f"{FAMILY}{process}_" for process in ("AGGREGATOR", "MODELSERVER", "SCALER"))
_OWN = f"{FAMILY}EXECUTED_AGAIN"  # the model server tells it to itself
_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+)", re.ASCII)
"""Variables that Kubernetes sets in a pod for a Service of the same name."""
_MOST_LISTED = 3
_ALIKE = 0.75
"""Of the last part of a name: `dtyp` is `dtype`, `brokers` is no `broker_ids`."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: where it stands, what it takes, and its default (PydanticUndefined where it must be given)."""

    path: Path
    field: FieldInfo
    default: Any


def leaves(settings_type: type[BaseModel], path: Path = (), defaults: BaseModel | None = None) -> Iterator[Leaf]:
    """Every setting of a type, group by group; a group with a description is one setting, a mapping."""
    for name, field in settings_type.model_fields.items():
        group = group_of(field.annotation)
        default = field.get_default() if defaults is None else getattr(defaults, name)
        if group is None or field.description:
            yield Leaf((*path, name), field, default)
        else:
            yield from leaves(group, (*path, name), default if isinstance(default, BaseModel) else None)


def all_paths(settings_type: type[BaseModel], path: Path = ()) -> Iterator[Path]:
    """Every name that a setting may be given by, those of groups as a whole included."""
    for name, field in settings_type.model_fields.items():
        yield (*path, name)
        group = group_of(field.annotation) or element_of(field.annotation)
        if group is not None:
            yield from all_paths(group, (*path, name))


def field_at(settings_type: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """The setting or group of this name; the places of list elements are passed over."""
    field: FieldInfo | None = None
    inside: type[BaseModel] | None = settings_type
    for name in path:
        if name.isdecimal():
            continue
        field = inside.model_fields.get(name) if inside is not None else None
        if field is None:
            return None
        inside = group_of(field.annotation) or element_of(field.annotation)
    return field


def group_of(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def element_of(annotation: Any) -> type[BaseModel] | None:
    models = (group_of(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)


def env_name(prefix: str, path: Sequence[str]) -> str:
    return prefix + "__".join(path).upper()


def is_service_link(name: str) -> bool:
    """Whether Kubernetes sets a variable of this name, here without its prefix, for a Service."""
    return _SERVICE_LINK.fullmatch(name) is not None


def unread(names: Sequence[str]) -> Iterator[str]:
    """A sentence about each environment variable that is named like a setting, and that no process reads."""
    for name in sorted(names):
        ours = name.startswith(FAMILY) and not name.startswith(_PREFIXES) and name != _OWN
        if ours and not is_service_link(name.removeprefix(FAMILY)):
            yield f"no process reads {name}: the names of settings begin with {', '.join(_PREFIXES)}"


class Names:
    """The names that a type of settings has. `others`: those of vLLM, TEI and Kafka, and what each is here.

    `shown` gives a path as it is written where the name was found: in the environment or in a file.
    """

    def __init__(self, settings_type: type[BaseModel], others: Mapping[str, str]) -> None:
        self._paths = tuple(all_paths(settings_type))
        self._others = others

    def __contains__(self, path: Path) -> bool:
        return path in self._paths

    def meant(self, path: Path, shown: Mapping[Path, str] | None = None) -> str:
        """The end of a sentence about a name that is no setting: what was meant, else what there is."""
        path = tuple(part for part in path if not part.isdecimal())
        if not path:
            return "; --help lists all"
        found = self._nearest(path)
        if isinstance(found, str):
            return f": {found}"
        write = ".".join if shown is None else shown.__getitem__
        if found:
            return f": did you mean {' or '.join(map(write, found[:_MOST_LISTED]))}?"
        group = self._group(path[:-1])
        inside = [each[-1] for each in self._paths if group and each[:-1] == group]
        return f": {'.'.join(group)} has {', '.join(inside)}" if inside else "; --help lists all"

    def _nearest(self, path: Path) -> Sequence[Path] | str:
        """The settings that may be meant, best first; or what to do, for a name that others have."""
        joined = {"".join(each).replace("_", ""): each for each in reversed(self._paths)}
        same = joined.get("".join(path).replace("_", ""))
        if same is not None:
            return [same]
        last, group = path[-1], self._group(path[:-1])
        other = self._others.get(last)
        if other is not None:
            target = tuple(other.split("."))
            return [target] if target in self._paths else other
        inside = [each for each in self._paths if each[:-1] == group]
        return _named(inside, last) or _named(self._paths, last)

    def _group(self, path: Path) -> Path:
        """The group that a path, which may be misspelt, leads to; empty for none."""
        group: Path = ()
        for part in path:
            inside = [each[-1] for each in self._paths if each[:-1] == group]
            near = get_close_matches(part, inside, n=1, cutoff=_ALIKE)
            if not near:
                return ()
            group = (*group, near[0])
        return group


def _named(paths: Sequence[Path], last: str) -> list[Path]:
    """The paths that end with a part, or else with the one most like it; short ones first."""
    ends = {path[-1] for path in paths}
    near = [last] if last in ends else get_close_matches(last, sorted(ends), n=1, cutoff=_ALIKE)
    return sorted((path for path in paths if path[-1] in near), key=len)
