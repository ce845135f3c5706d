"""Make the answer to `Describe`: the engine's facts, the model's files, the measured profile."""

from __future__ import annotations

from dataclasses import dataclass

from modelserver.engines.engine import EngineFacts, Scoring, Task
from modelserver.engines.rows import rows_of
from modelserver.model_files import ModelFiles
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(frozen=True, slots=True)
class Description:
    """The answer to `Describe`, ready to be sent, and the engine's facts that queries are checked against."""

    facts: EngineFacts
    message: pb.DescribeResponse


def describe(
    name: str,
    facts: EngineFacts,
    files: ModelFiles,
    profile: pb.SaturationProfile | None,
    instance_id: str,
    *,
    generation: pb.GenerationProfile | None = None,
    degraded: str = "",
) -> Description:
    """The description of one running model server; `generation` is of a server that generates.

    `degraded`: why it serves fewer tasks than its settings ask for.
    """
    description = Description(
        facts,
        pb.DescribeResponse(
            model=name,
            model_revision=files.revision,
            tokenizer_fingerprint=files.fingerprint,
            dimensions=facts.dimensions,
            matryoshka_dimensions=_matryoshka(files, facts.dimensions),
            max_input_tokens=facts.max_input_tokens,
            step_token_capacity=facts.step_token_capacity,
            step_query_capacity=facts.step_query_capacity,
            normalizes=files.normalizes,
            query_prompt=files.query_prompt,
            document_prompt=files.document_prompt,
            profile=profile,
            engine=facts.kind,
            engine_version=facts.version,
            dtype=facts.dtype,
            device=facts.device,
            vocabulary_size=facts.vocabulary_size,
            instance_id=instance_id,
            task=min(facts.tasks).value,
            tasks=sorted(facts.tasks),
            degraded=degraded,
            capture_sizes=facts.capture_sizes,
            labels=facts.scoring.labels if Task.CLASSIFY in facts.tasks and facts.scoring else (),
            pair_template=_pair_template(facts.scoring) if facts.scoring is not None else None,
            generation=generation,
            pools_spans=facts.pools_spans,
            never_zero=min(facts.tasks) != Task.GENERATE and not facts.gives_zeros,
        ),
    )
    if (rows := rows_of(files)) is not None:
        rows.describe(description.message)
    return description


def _pair_template(scoring: Scoring) -> pb.PairTemplate:
    return pb.PairTemplate(text=scoring.template, token_types=scoring.token_types)


def _matryoshka(files: ModelFiles, dimensions: int) -> tuple[int, ...]:
    """The sizes that the model's files name; every size if they name none of a matryoshka model."""
    if files.matryoshka_dimensions or not files.is_matryoshka:
        return files.matryoshka_dimensions
    return tuple(range(1, dimensions + 1))
