"""Inputs that were computed before are answered with the same rows, within bounds, and to whom they belong."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from aggregator.admission.known_rows import KnownRows
from aggregator.errors import Code
from aggregator.model_server import Details, ServerDescription
from aggregator.request.request import Request
from aggregator.scheduler.work_item import Query, WorkItem
from aggregator.settings.aggregator import AggregatorSettings, GrpcSettings
from aggregator.sources.wire.encode import response, to_protobuf
from aggregator.wings.cache.cache import ENTRY_BYTES, RowCache, open_caches
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import KAFKA, any_request
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline
from tests.support.virtual_time import in_virtual_time

SPANNED = replace(DESCRIPTION, pools_spans=True)


class Caches:
    """The caches of a process with these settings, as its pipeline opens them."""

    def __init__(self, cache_bytes: int = 1 << 20, *, grpc: GrpcSettings | None = None) -> None:
        self.buffer = MetricsBuffer()
        self.opened: list[KnownRows] = []
        self._settings = AggregatorSettings.model_validate(
            {"batching": {"cache_bytes": cache_bytes}, "models": [{"name": "m", "servers": ["h:1"]}]}
        ).model_copy(update={"grpc": grpc or GrpcSettings()})
        self._open = open_caches(self._settings, self.buffer)

    def __call__(self, description: ServerDescription) -> KnownRows:
        assert self._open is not None
        self.opened.append(self._open(description))
        return self.opened[-1]

    def value(self, name: str, **attributes: str) -> float:
        """A metric's value as a reader sees it."""
        for metric in self.buffer.collect().metrics:
            for point in metric.data.data_points:
                if metric.name == name and dict(point.attributes or {}) == attributes:
                    return float(point.value)  # type: ignore[union-attr]
        return 0.0


async def embedded(faked: FakedPipeline, *texts: str, **fields: Any) -> pb.EmbedResponse:
    return response(await faked.embed(*texts, **fields), "")


@pytest.mark.parametrize("encoding", [pb.ENCODING_FLOAT32, pb.ENCODING_FLOAT16, pb.ENCODING_INT8, pb.ENCODING_BINARY])
@pytest.mark.parametrize("fields", [{}, {"dimensions": 2}, {"normalize": True}, {"dimensions": 2, "normalize": True}])
@in_virtual_time
async def test_a_hit_has_the_bits_of_the_first_answer(encoding: pb.Encoding, fields: dict[str, Any]) -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches()).started() as faked:
        first = await embedded(faked, "10 20", "30", "7 8 9", encoding=encoding, **fields)
        again = await embedded(faked, "7 8 9", "10 20", encoding=encoding, **fields)
        alone = await embedded(faked, "30", encoding=encoding, **fields)
    assert len(engine.batches) == 1
    assert [*again.embeddings] == [first.embeddings[2], first.embeddings[0]]
    assert [*alone.embeddings] == [first.embeddings[1]]
    assert (first.cached, again.cached, alone.cached) == (0, 2, 1)


@in_virtual_time
async def test_an_answer_says_how_many_of_its_vectors_were_computed_before() -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches()).started() as faked:
        await faked.embed("10 20")
        mixed = await faked.embed("10 20", "30")
        hit = await faked.embed("10 20")
    assert response(mixed, "").cached == 1
    assert pb.EmbedResponse.FromString(to_protobuf(hit, "")).cached == 1
    assert pb.EmbedResponse.FromString(to_protobuf(hit, "")).timings.inference.ToNanoseconds() == 0
    assert [len(batch.token_ids) // 4 for batch in engine.batches] == [4, 3], "only what is unknown is computed"


@in_virtual_time
async def test_chunks_of_a_document_are_found_as_they_were_made() -> None:
    engine = FakeEngine(SPANNED)
    document = pb.Input(chunks=pb.Chunks(texts=["10 20", "30"]))
    async with FakedPipeline(engine, known=Caches()).started() as faked:
        answers = [response(await faked.embed(document), "") for _ in range(2)]
        await faked.embed("10 20 30")
    assert answers[1].cached == 1
    assert [*answers[1].embeddings] == [*answers[0].embeddings]
    assert len(engine.batches) == 2, "the same ids without chunks are another computation"


@pytest.mark.parametrize("cache", [True, False])
@in_virtual_time
async def test_ids_that_are_the_bytes_of_a_document_are_another_input(cache: bool) -> None:
    document = pb.Input(token_ids=pb.TokenIds(ids=[10, 20, 30]), spans=[pb.Span(start=0, end=2)])
    alike = pb.Input(token_ids=pb.TokenIds(ids=[10, 20, 30, 0, 2]))
    async with FakedPipeline(FakeEngine(SPANNED), known=Caches() if cache else None).started() as faked:
        both = response(await faked.embed(document, alike), "")
        again = [response(await faked.embed(each), "") for each in (alike, document)]
    assert [len(each.chunks) for each in both.embeddings] == [1, 0]
    assert [answer.embeddings[0] for answer in again] == [both.embeddings[1], both.embeddings[0]]


@in_virtual_time
async def test_a_redriven_record_is_computed_again() -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches()).started() as faked:
        await faked.embed("10 20")
        again = faked.request("10 20", source=KAFKA)
        again.redriven = True
        faked.produce(again)
        await asyncio.sleep(1)
    assert not again.remaining
    assert len(engine.batches) == 2


@in_virtual_time
async def test_what_failed_is_not_kept() -> None:
    engine = FakeEngine(DESCRIPTION, poison=frozenset({13}))
    caches = Caches()
    async with FakedPipeline(engine, known=caches).started() as faked:
        answer = await faked.embed("13 1")
        assert answer.code is Code.INTERNAL
    assert caches.value("tokenbatch.cache.bytes") == 0
    assert caches.value("tokenbatch.cache.lookups", result="hit") == 0


@in_virtual_time
async def test_two_revisions_never_mix() -> None:
    first = FakeEngine(DESCRIPTION)
    second = FakeEngine(replace(DESCRIPTION, address="server-2:1", model_revision="r2"))
    caches = Caches()
    async with FakedPipeline(first, second, known=caches).started() as faked:
        revisions = [first.description.model_revision, "r2"]
        answers = [await faked.embed("10 20", model_revision=each) for each in revisions * 2]
    assert [response(answer, "").model_revision for answer in answers] == revisions * 2
    assert [response(answer, "").cached for answer in answers] == [0, 0, 1, 1]
    assert (len(first.batches), len(second.batches)) == (1, 1)
    assert len(caches.opened) == 2


class Authenticated(GrpcSettings):
    """A port where callers must authenticate."""

    @property
    @override
    def authenticated(self) -> bool:
        return True


@pytest.mark.parametrize(("grpc", "cached"), [(GrpcSettings(), 1), (Authenticated(), 0)])
@in_virtual_time
async def test_where_callers_authenticate_a_tenant_finds_its_own_rows_only(grpc: GrpcSettings, cached: int) -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches(grpc=grpc)).started() as faked:
        mine = [await embedded(faked, "10 20", tenant=tenant) for tenant in ("a", "a", "b")]
    assert [answer.cached for answer in mine] == [0, 1, cached]


@in_virtual_time
async def test_a_full_queue_still_answers_what_is_known() -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches(), max_held_tokens=4).started() as faked:
        await faked.embed("10 20")
        waiting = asyncio.create_task(faked.embed("1 2 3 4"))
        await asyncio.sleep(0.001)
        refused = await faked.embed("5 6")
        known = await faked.embed("10 20")
        await waiting
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert known.code is Code.OK
    assert response(known, "").cached == 1


def rows_of(cache: RowCache, key: int, tenant: str = "") -> bool:
    """Whether a lookup of one sequence finds its row; an unknown one is kept from then on."""
    sequence = key.to_bytes(8, "little")
    request = any_request("x", tenant=tenant)
    unknown, found = cache.find(request, [(0, sequence, 2)])
    cache.seal(0.0)
    if unknown:
        cache.keep([item_of(request, sequence)], (), np.full((1, 4), key, np.float32))
    else:
        ((_, vector),) = found
        assert vector.batch.matrix[vector.row].tolist() == [key] * 4
    return bool(found)


def item_of(request: Request, sequence: bytes) -> Any:
    query = Query(request, 0, request.priority, request.tenant, 0.0, 0.0)
    return WorkItem(sequence, 2, [query], request.priority)


def cache_of(entries: int, make: Callable[..., Caches] = Caches) -> RowCache:
    """A cache that has room for so many rows of four components."""
    cache = make(cache_bytes=entries * (8 + 16 + ENTRY_BYTES))(DESCRIPTION)
    assert isinstance(cache, RowCache)
    return cache


@pytest.mark.parametrize("exponent", [0.9, 1.0])
def test_the_hit_rate_of_zipfs_law_is_that_of_the_least_recently_used(exponent: float) -> None:
    weights = 1.0 / np.arange(1, 5001) ** exponent
    keys = np.random.default_rng(7).choice(5000, 20_000, p=weights / weights.sum()).tolist()
    cache, model, hits = cache_of(500), OrderedDict[int, None](), 0
    for key in keys:
        hits += key in model
        model[key] = None
        model.move_to_end(key)
        if len(model) > 500:
            model.popitem(last=False)
    found = sum(rows_of(cache, key) for key in keys)
    assert abs(found - hits) / len(keys) < 0.02
    assert hits > len(keys) // 4


def test_a_flood_of_new_texts_stays_in_its_bytes() -> None:
    caches = Caches(cache_bytes=100_000)
    cache = caches(DESCRIPTION)
    assert isinstance(cache, RowCache)
    for key in range(2000):
        rows_of(cache, key, tenant=f"t{key}")
        assert cache.bytes <= 100_000
    assert cache.bytes == caches.value("tokenbatch.cache.bytes") > 90_000
    assert caches.value("tokenbatch.cache.lookups", result="miss") == 2000


class Drawn(Details):
    """Of a server that draws its results."""

    is_repeatable = False


def test_what_is_not_repeatable_is_not_kept() -> None:
    assert not isinstance(Caches()(replace(DESCRIPTION, details=Drawn())), RowCache)


def test_without_bytes_there_is_no_cache() -> None:
    assert open_caches(AggregatorSettings(), MetricsBuffer()) is None
