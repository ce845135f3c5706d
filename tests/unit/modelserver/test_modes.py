"""The tasks of a model, where no wing serves more than embeddings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelserver import model_files
from modelserver.engines.choice import no_scores
from modelserver.engines.engine import Task
from modelserver.errors import CannotStart
from modelserver.modes import tasks_of
from modelserver.settings import ModelServerSettings, ModelSettings
from tests.support.model_folder import change


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MiniLM's tokenizer and config.json, without modules."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_files.locate("", "") / name, tmp_path / name)
    return tmp_path


def test_a_task_that_no_mode_serves_is_refused_with_what_is(folder: Path) -> None:
    settings, files = ModelServerSettings(model=ModelSettings(task="generate")), model_files.read(folder, "")
    with pytest.raises(CannotStart, match="set it to embed, rank or classify"):
        tasks_of(settings, files, (), no_scores)
    embedding = ModelServerSettings(model=ModelSettings(task="embed", adapter="a"))
    with pytest.raises(CannotStart, match=r"embeds with task both, and model\.task is embed"):
        tasks_of(embedding, files, (), no_scores)


def test_without_the_wing_a_model_that_scores_is_refused(folder: Path) -> None:
    settings, files = ModelServerSettings(), model_files.read(folder, "")
    assert tasks_of(settings, files, (), no_scores) == {Task.EMBED}
    change(folder, "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(CannotStart, match="would score, which this build does not"):
        tasks_of(settings, model_files.read(folder, ""), (), no_scores)
