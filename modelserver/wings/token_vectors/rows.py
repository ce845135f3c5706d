"""The rows of a model that gives a vector a token, or a weight: `model.task` multi_vector and sparse."""

from __future__ import annotations

from typing import Any

from modelserver.engines.rows import Rows
from modelserver.model_files import ModelFiles, gives_tokens
from modelserver.wings.token_vectors.files import MULTI_VECTOR, SPARSE, read
from protos.modelserver.v1 import modelserver_pb2 as pb


def read_rows(task: str, files: ModelFiles) -> Rows | None:
    """Raises CannotStart for a folder that does not give what the task asks for."""
    if task == "auto" and gives_tokens(files.path):
        task = MULTI_VECTOR
    if task not in (MULTI_VECTOR, SPARSE):
        return None
    found = read(files, task)
    overrides: dict[str, Any] = {}
    if found.runs_padded:
        overrides = {"architectures": ["PaddedEncoder"], "unattended_id": found.unattended}

    def describe(answer: pb.DescribeResponse) -> None:
        answer.task = task
        answer.tasks[:] = [task]
        answer.token_vectors.CopyFrom(found.described)

    return Rows(found.modules, found.normalizes, found.prompts, overrides, describe)
