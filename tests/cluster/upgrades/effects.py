"""That a value of the chart, once an upgrade gave it, shows in the objects that it is for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.cluster.release import NAMESPACE, Object, kube

GIVEN, GONE = "what was given", "no such object"


@dataclass(frozen=True, slots=True)
class Effect:
    """`value` is a path such as aggregator.image.tag; it shows in every object that `kubectl get OF` finds.

    `shown`: how to find it there, or its path: `container` and `settings` stand for what those functions find, and a *
    at the end for the fields that were given, as Kubernetes adds others.
    """

    value: str
    of: str
    shown: Callable[[Object], Any] | str
    expected: Any = GIVEN


@dataclass(frozen=True, slots=True)
class Stage:
    """One upgrade: the values that it gives, and what each does; its pods are ready then unless they `cannot_run`.

    `unscaled`: the replicas are an autoscaler's until then, which may set them once more before Helm deletes it.
    `prepare` does what must be done before.
    """

    name: str
    values: Object
    effects: tuple[Effect, ...]
    cannot_run: bool = False
    unscaled: bool = False
    prepare: Callable[[], None] = lambda: None
    _seen: dict[str, list[Object]] = field(default_factory=dict[str, list[Object]])

    def given(self, path: str) -> Any:
        """What the stage gives to a value. Raises KeyError, IndexError or TypeError where it gives none."""
        found: Any = self.values
        for name in path.split("."):
            found = _part(found, name)
        return found

    def expected(self, effect: Effect) -> Any:
        """What the objects must show."""
        return self.given(effect.value) if effect.expected is GIVEN else effect.expected

    def look(self) -> list[Any]:
        """What is shown now, effect by effect: one thing where all objects show the same, a list of them where not."""
        self._seen.clear()
        return [self._look(effect) for effect in self.effects]

    def _look(self, effect: Effect) -> Any:
        if effect.of not in self._seen:
            self._seen[effect.of] = _objects(effect.of)
        shown: list[Any] = []
        for each in self._seen[effect.of]:
            what = _shown(effect, each, self.expected(effect))
            shown += [] if what in shown else [what]
        return (shown[0] if len(shown) == 1 else shown) if shown else GONE


def _objects(of: str) -> list[Object]:
    given = () if " --namespace" in of else ("--namespace", NAMESPACE)
    told = kube(*given, "get", *of.split(), "--ignore-not-found", "--show-managed-fields", "--output=json")
    found: Object = json.loads(told or '{"items": []}')
    items: list[Object] = found.get("items", [found])
    return [each for each in items if "deletionTimestamp" not in each["metadata"]]


def _shown(effect: Effect, each: Object, expected: Any) -> Any:
    """None where there is nothing of the kind."""
    try:
        if not isinstance(effect.shown, str):
            return effect.shown(each)
        first, *names = effect.shown.split(".")
        found = _ROOTS[first](each) if first in _ROOTS else each[first]
        for name in names:
            found = only(expected, found) if name == "*" else _part(found, name)
        return found
    except (KeyError, IndexError, StopIteration):
        return None


def _part(found: Any, name: str) -> Any:
    return found[int(name)] if isinstance(found, list) else found[name]


def pod(each: Object) -> Object:
    spec: Object = each["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def container(each: Object) -> Object:
    (found,) = pod(each)["containers"]
    return dict(found)


def variable(each: Object, name: str) -> Object:
    return next(dict(one) for one in container(each)["env"] if one["name"] == name)


def volume(each: Object, name: str) -> Object:
    """One volume of the pod, without its name."""
    found = next(one for one in pod(each)["volumes"] if one["name"] == name)
    return {key: value for key, value in found.items() if key != "name"}


def secret(each: Object, volume_name: str, *paths: str) -> tuple[str, ...]:
    """The Secret that a volume shows in these files, and the keys that are shown in them."""
    for source in volume(each, volume_name)["projected"]["sources"]:
        keys = {item["path"]: item["key"] for item in source["secret"]["items"]}
        if set(keys) == set(paths):
            return (source["secret"]["name"], *(keys[path] for path in paths))
    raise KeyError(paths)


def settings(each: Object) -> Any:
    (text,) = each["data"].values()
    return yaml.safe_load(text)


_ROOTS: dict[str, Callable[[Object], Any]] = {"container": container, "settings": settings}


def among(given: list[Object], shown: list[Object]) -> list[Object]:
    """Those that were given; Kubernetes has added others."""
    return [each for each in shown if each in given]


def only(keys: Any, shown: Object) -> Object:
    """What is shown under these keys; Kubernetes has added others."""
    return {key: shown[key] for key in keys}


def owner(each: Object, manager: str = "helm") -> str:
    """The version of the API by which that manager wrote the object."""
    written = (one["apiVersion"] for one in each["metadata"]["managedFields"] if one["manager"].startswith(manager))
    return str(next(written))
