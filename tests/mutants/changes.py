"""Which changes are made to the code: mutmut's own, less what no behaviour tells apart, and inside properties too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import libcst as cst
from libcst import matchers
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.pragma_handling import IgnoredCode

_ALSO_MUTATED = matchers.OneOf(
    *(matchers.Name(name) for name in ("property", "override", "cached_property")),
    matchers.Call(func=matchers.Name("lru_cache")),
)
_LOGGING = matchers.Call(func=matchers.Attribute(value=matchers.Name("_log") | matchers.Name("_LOG")))
_AN_ERROR = matchers.OneOf(
    # Read, not imported: what this process imports would not be mutated in those that it forks.
    *(
        matchers.Name(name)
        for file in ("aggregator/errors.py", "modelserver/errors.py")
        for name in re.findall(r"^class (\w+)", Path(file).read_text(), re.MULTILINE)
    ),
    matchers.Name("Failure"),
)
_ENCODING = matchers.SimpleString(value='"utf-8"')
_TEXT = cst.SimpleString | cst.FormattedString | cst.ConcatenatedString


class Visitor(file_mutation.MutationVisitor):
    """Leaves out asserts, for the opposite of one is a bug; and the wording of errors and logs, which is for people."""

    def __init__(
        self, operators: mutators.OPERATORS_TYPE, ignored_code: IgnoredCode, covered_lines: set[int] | None = None
    ) -> None:
        super().__init__(operators, ignored_code, covered_lines)
        self._messages: set[cst.CSTNode] = set()

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Assert) or node in self._messages or matchers.matches(node, _LOGGING | _ENCODING):
            return True
        told = node.exc if isinstance(node, cst.Raise) else node
        if isinstance(told, cst.Call) and (told is not node or matchers.matches(told.func, _AN_ERROR)):
            self._messages.update(arg.value for arg in told.args if _is_text(arg.value))
        return False if _is_also_mutated(node) else super()._skip_node_and_children(node)

    def _create_mutations(self, node: cst.CSTNode) -> None:
        known = len(self.mutations)
        super()._create_mutations(node)
        if isinstance(node, cst.Call) and (messages := {arg.value for arg in node.args} & self._messages):
            self.mutations[known:] = [
                mutation
                for mutation in self.mutations[known:]
                if isinstance(mutation.mutated_node, cst.Call)
                and messages <= {arg.value for arg in mutation.mutated_node.args}
            ]


def _is_text(node: cst.BaseExpression) -> bool:
    return isinstance(node, _TEXT) or (isinstance(node, cst.IfExp) and _is_text(node.body) and _is_text(node.orelse))


def installed() -> AbstractContextManager[object]:
    """Have mutmut make these changes for a while."""
    return patch.multiple(
        file_mutation,
        MutationVisitor=Visitor,
        function_trampoline_arrangement=_arrangement,
        mutation_operators=[
            (kind, _assignment if operator is mutators.operator_assignment else operator)
            for kind, operator in mutators.mutation_operators
        ],
    )


def _is_also_mutated(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.FunctionDef)
        and bool(node.decorators)
        and all(matchers.matches(decorator.decorator, _ALSO_MUTATED) for decorator in node.decorators)
    )


def _assignment(node: cst.Assign | cst.AnnAssign) -> Iterable[cst.CSTNode]:
    """Not `False` to `None`, which are one and the same to an `if`; `False` becomes `True` all the same."""
    if node.value is None or not matchers.matches(node.value, matchers.Name("False")):
        yield from mutators.operator_assignment(node)


_arrange = file_mutation.function_trampoline_arrangement
_Statements = Sequence[file_mutation.MODULE_STATEMENT]


def _arrangement(
    function: cst.FunctionDef, mutants: Iterable[file_mutation.Mutation], class_name: str | None
) -> tuple[_Statements, _Statements, _Statements, Sequence[str]]:
    """A property's variants are plain functions; what chooses among them is the property."""
    if not _is_also_mutated(function):
        return _arrange(function, mutants, class_name)
    declared, (chooser, *variants), assigned, names = _arrange(
        function.with_changes(decorators=()), mutants, class_name
    )
    assert isinstance(chooser, cst.FunctionDef), "What mutmut puts first is no function."
    chooser = chooser.with_changes(decorators=(*function.decorators, *chooser.decorators))
    return declared, (chooser, *variants), assigned, names
