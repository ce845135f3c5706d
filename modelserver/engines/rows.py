"""The hook for models whose rows are not one vector a text: a wing reads their folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modelserver.engines.pooling import Modules
from modelserver.model_files import ModelFiles
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(frozen=True, slots=True)
class Rows:
    """How the hidden states of a model are computed and described. `prompts`: of queries and documents.

    `overrides`: entries of config.json to replace for vLLM. `describe` completes the answer to `Describe`.
    """

    modules: Modules
    normalizes: bool
    prompts: tuple[str, str]
    overrides: Mapping[str, Any]
    describe: Callable[[pb.DescribeResponse], None]


ReadRows = Callable[[str, ModelFiles], Rows | None]
"""Reads a folder for a `model.task`; None: it gives one vector a text, or another task. Raises CannotStart."""


def with_rows(files: ModelFiles, task: str, readers: Iterable[ReadRows]) -> ModelFiles:
    """The files with the rows that a wing reads in them. Raises CannotStart."""
    for read in readers:
        rows = read(task, files)
        if rows is not None:
            query, document = rows.prompts
            return replace(files, rows=rows, normalizes=rows.normalizes, query_prompt=query, document_prompt=document)
    return files


def rows_of(files: ModelFiles) -> Rows | None:
    return files.rows if isinstance(files.rows, Rows) else None
