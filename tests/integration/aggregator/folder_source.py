"""A source of its own: text files in a folder are requests, and their vectors are written beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

from typing_extensions import override

from aggregator.request.request import Defaults, Receive, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.wire.encode import to_protobuf
from aggregator.sources.wire.message import parse
from protos.embedding.v1 import embedding_pb2 as pb

_LOOK_EVERY_S = 0.05


class FolderSource(Source):
    """Reads every `*.txt` once, and writes the `EmbedResponse` to a file of the same name with the suffix `.reply`."""

    name = "folder"
    refusable = False

    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder
        self._defaults = Defaults(self, model, Priority.BACKGROUND)
        self._taken: set[Path] = set()
        self._ends = False

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return (self._receive,)

    async def _receive(self) -> Sequence[Request]:
        while not self._ends:
            if found := sorted(set(self._folder.glob("*.txt")) - self._taken):
                self._taken.update(found)
                return [self._request(path) for path in found]
            await asyncio.sleep(_LOOK_EVERY_S)
        return ()

    def _request(self, path: Path) -> Request:
        message = pb.EmbedRequest(request_id=path.stem, inputs=[pb.Input(text=path.read_text())])
        return parse(EMBEDDING, message, self._defaults, path, received_s=time.monotonic(), wall_s=time.time())

    @override
    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        for request in requests:
            cast("Path", request.origin).with_suffix(".reply").write_bytes(to_protobuf(request, ""))
        yield requests

    @override
    async def stop(self, grace_s: float) -> None:
        self._ends = True
