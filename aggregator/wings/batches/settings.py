"""The settings of the Batch API."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt, field_validator

from k8s.pod.settings import Group

SCHEMES = ("file:///", "s3://", "gs://", "az://")


class BatchesSettings(Group):
    """Where files and batches lie, and how much a tenant may keep there."""

    store: str = Field(
        default="",
        description="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER that all"
        " aggregators share: /v1/files and /v1/batches are served, and their state is there; needs kafka and http."
        " Credentials are the environment's, as the store's own tools read them. Empty: neither is served",
    )
    topic: str = Field(default="batch.chunks.v1", description="topic that says which chunk is computed by whom")
    max_file_bytes: PositiveInt = Field(default=1 << 30, description="the largest file that is taken")
    max_lines: PositiveInt = Field(default=50_000, description="requests of one batch, as OpenAI's API has it")
    max_stored_bytes: PositiveInt = Field(default=100 << 30, description="bytes of a tenant's files and answers")
    max_unfinished: PositiveInt = Field(default=100, description="batches of a tenant that are not finished")
    max_unfinished_lines: PositiveInt = Field(
        default=5_000_000, description="requests in all batches of a tenant that are not finished; one more fails"
    )

    chunk_inputs: ClassVar[int] = 256
    """Inputs of a chunk, which is one object and one record: a crash repeats at most eight of them an aggregator."""
    chunk_bytes: ClassVar[int] = 1 << 20
    """Bytes of a chunk, unless one line is larger."""

    @field_validator("store")
    @classmethod
    def _is_a_url(cls, store: str) -> str:
        if store and not store.startswith(SCHEMES):
            raise ValueError("give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER")
        return store
