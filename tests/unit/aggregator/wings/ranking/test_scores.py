"""Requests for scores: pairs as the model wants them, each with its own status, packed as all inputs are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggregator.errors import Code, ModelServerLost
from aggregator.request.request import Defaults, Failure, Request
from aggregator.request.vector import Vector
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.calls import Call, call_of
from aggregator.sources.wire.message import parse
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.scoring import PairTemplate
from aggregator.wings.ranking.wire import response
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.ranking.v1 import ranking_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.fake_tokenizer import FIRST, LAST, FakeTokenizer
from tests.support.faked_pipeline import DESCRIPTION, MODEL, FakedPipeline
from tests.support.virtual_time import in_virtual_time

CURVE = Curve(0.0, 0.002, 1e-4, 100, Rule.THROUGHPUT, 4096)
PLAIN = replace(DESCRIPTION, dimensions=1, matryoshka_dimensions=frozenset(), details=PairTemplate(), curve=CURVE)
TYPED = replace(PLAIN, details=PairTemplate(token_types=True))
CLASSIFIER = replace(PLAIN, dimensions=2, labels=("good", "bad"))


def requested(faked: FakedPipeline, message: pb.RankRequest | pb.ScoreRequest) -> Request:
    load = faked._load.enter(("caller",))  # noqa: SLF001 - as the pipeline's own requests
    now_s = asyncio.get_running_loop().time()
    defaults = Defaults(faked.grpc, MODEL, Priority.INTERACTIVE)
    return parse(RANKING, message, defaults, Call(load), received_s=now_s, wall_s=0.0)


async def answered(faked: FakedPipeline, message: pb.RankRequest | pb.ScoreRequest) -> Any:
    request = requested(faked, message)
    faked.grpc.batcher.add(request)
    await call_of(request).wait()
    return response(request, "")


def rank(query: str, *documents: str, **fields: Any) -> pb.RankRequest:
    return pb.RankRequest(query=query, documents=documents, **fields)


def score(*pairs: tuple[str, str | None], **fields: Any) -> pb.ScoreRequest:
    return pb.ScoreRequest(pairs=[pb.Pair(text=first, second_text=second) for first, second in pairs], **fields)


def sent(engine: FakeEngine) -> list[tuple[list[int], int | None]]:
    """Every sequence that the engine got, and where its second text begins."""
    found: list[tuple[list[int], int | None]] = []
    for batch in engine.batches:
        lengths = np.frombuffer(batch.lengths, "<i4")
        ids = np.split(np.frombuffer(batch.token_ids, "<i4"), np.cumsum(lengths)[:-1])
        places = np.frombuffer(batch.second_segments, "<i4").tolist() or [None] * len(lengths)
        found += zip([each.tolist() for each in ids], places, strict=True)
    return found


def new_engine(description: Any = PLAIN, **changes: Any) -> FakeEngine:
    return FakeEngine(description, **changes)


@in_virtual_time
async def test_documents_come_in_the_order_of_their_scores_those_failed_last() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, rank("5", "10", "", "30 1", "20", return_documents=True))
    assert sorted(sent(engine)) == [([1, 5, 2, 10, 2], None), ([1, 5, 2, 20, 2], None), ([1, 5, 2, 30, 1, 2], None)]
    assert [(each.index, each.score, each.document, each.token_count) for each in answer.results] == [
        (2, 41.0, "30 1", 6),
        (3, 30.0, "20", 5),
        (0, 20.0, "10", 5),
        (1, 0.0, "", 0),
    ]
    assert [each.status.code for each in answer.results] == [0, 0, 0, Code.INVALID_ARGUMENT]
    assert (answer.status.code, answer.model_revision, bool(answer.batch_id)) == (Code.INVALID_ARGUMENT, "r1", True)


@in_virtual_time
async def test_top_n_counts_scored_documents_and_omits_texts_unless_asked() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        answer = await answered(faked, rank("5", "10", "", "30", "20", top_n=2))
    assert [(each.index, each.document) for each in answer.results] == [(2, ""), (3, ""), (1, "")]


@in_virtual_time
async def test_the_second_text_is_marked_and_pairs_differing_only_so_run_apart() -> None:
    engine = new_engine(TYPED)
    async with FakedPipeline(engine).started() as faked:
        # [1 5 2 2 7 2]: once with the second text at 3, once with the word 2 in the first one, and a text by itself
        answer = await answered(faked, score(("5", "2 7"), ("5 2", "7"), ("5 2 2 7", None), ("5", "2 7")))
    assert sorted(sent(engine)) == [([1, 5, 2, 2, 7, 2], 3), ([1, 5, 2, 2, 7, 2], 4), ([1, 5, 2, 2, 7, 2], 6)]
    assert [list(each.scores) for each in answer.results] == [[19.0]] * 4
    assert [each.token_count for each in answer.results] == [6] * 4


@in_virtual_time
async def test_the_query_is_tokenized_once_and_equal_documents_computed_once() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        await answered(faked, rank("what is rain", *("10", "20", "10")))
        tokenizer = faked.pool.tokenizer
    assert isinstance(tokenizer, FakeTokenizer)
    counted = [text for call in tokenizer.calls for text in call]
    assert counted.count("what is rain") == 1
    assert len(sent(engine)) == 2


WORDS = " ".join(str(number) for number in range(100, 150))


@pytest.mark.parametrize(
    ("truncate", "kept"),
    [(embedding.TRUNCATE_END, range(100, 127)), (embedding.TRUNCATE_START, range(123, 150))],
)
@in_virtual_time
async def test_the_document_is_cut_and_never_the_query(truncate: embedding.Truncate, kept: range) -> None:
    engine = new_engine(TYPED)
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, rank("5 6", WORDS, truncate=truncate))
    assert sent(engine) == [([FIRST, 5, 6, LAST, *kept, LAST], 4)]
    assert answer.results[0].token_count == 32


@in_virtual_time
async def test_a_text_alone_that_is_cut_has_no_second_text_behind_its_end() -> None:
    engine = new_engine(TYPED)
    async with FakedPipeline(engine).started() as faked:
        await answered(faked, score((WORDS, None), truncate=embedding.TRUNCATE_END))
    assert sent(engine) == [([FIRST, *range(100, 130), LAST], 32)]


@in_virtual_time
async def test_truncate_to_shortens_further() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        await answered(faked, rank("5", WORDS, truncate=embedding.TRUNCATE_END, truncate_to=6))
    assert sent(engine) == [([FIRST, 5, LAST, 100, 101, LAST], None)]


@pytest.mark.parametrize(
    ("truncate", "kept"),
    [(embedding.TRUNCATE_NONE, (100, 101, 102)), (embedding.TRUNCATE_START, (147, 148, 149))],
)
@in_virtual_time
async def test_each_document_is_cut_to_the_tokens_that_a_document_may_have(
    truncate: embedding.Truncate, kept: tuple[int, ...]
) -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        await answered(faked, rank("5", WORDS, "7", truncate=truncate, max_tokens_per_doc=3))
    assert sorted(sent(engine)) == [([FIRST, 5, LAST, 7, LAST], None), ([FIRST, 5, LAST, *kept, LAST], None)]


@in_virtual_time
async def test_a_template_of_text_refuses_a_limit_of_each_document() -> None:
    engine = new_engine(replace(PLAIN, details=PairTemplate("9 {query} 8 {document} 7")))
    async with FakedPipeline(engine).started() as faked:
        answer = await answered(faked, rank("5", "10", max_tokens_per_doc=3))
    assert answer.status.code == Code.INVALID_ARGUMENT
    assert "documents are cut by truncate_to alone" in answer.status.message


@in_virtual_time
async def test_a_document_too_long_fails_by_itself_unless_it_may_be_cut() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        answer = await answered(faked, rank("5", WORDS, "7"))
    assert [(each.index, each.status.code) for each in answer.results] == [(1, 0), (0, Code.OUT_OF_RANGE)]
    assert "54 tokens: test-model takes 32 tokens; send less, or set truncate" in answer.results[1].status.message


@pytest.mark.parametrize("truncate", [embedding.TRUNCATE_NONE, embedding.TRUNCATE_END])
@in_virtual_time
async def test_a_query_that_leaves_no_room_fails_the_request(truncate: embedding.Truncate) -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        answer = await answered(faked, rank(WORDS, "7", "8", truncate=truncate))
    assert answer.status.code == Code.OUT_OF_RANGE
    assert "the query takes 53 tokens of a pair, which leaves no room for a document" in answer.status.message
    assert [each.status.code for each in answer.results] == [Code.OUT_OF_RANGE] * 2


@in_virtual_time
async def test_a_template_of_text_is_tokenized_as_a_whole() -> None:
    engine = new_engine(replace(PLAIN, details=PairTemplate("9 {query} 8 {document} 7")))
    async with FakedPipeline(engine).started() as faked:
        await answered(faked, rank("5 {document}", "10"))
        await answered(faked, rank("5", WORDS, truncate=embedding.TRUNCATE_END))
        await answered(faked, rank("5", WORDS, truncate=embedding.TRUNCATE_START))
        alone = await answered(faked, score(("10", None)))
    whole, end, start = (ids for ids, _ in sent(engine))
    assert (whole[0], whole[1], whole[-3:]) == (9, 5, [8, 10, 7])
    assert end == [9, 5, 8, *range(100, 128), 7]
    assert start == [9, 5, 8, *range(122, 150), 7]
    assert "scores pairs of texts, and no text by itself" in alone.status.message


@in_virtual_time
async def test_a_classifier_gives_a_score_a_label_and_ranks_nothing() -> None:
    async with FakedPipeline(new_engine(CLASSIFIER)).started() as faked:
        answer = await answered(faked, score(("10 11", None), ("5", "7")))
        refused = await answered(faked, rank("5", "7"))
    assert [list(each.scores) for each in answer.results] == [[24.0, 4.0], [17.0, 5.0]]
    assert list(answer.labels) == ["good", "bad"]
    assert "test-model classifies and does not rank" in refused.status.message


@in_virtual_time
async def test_a_model_that_scores_embeds_nothing_and_the_other_way_round() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        await asyncio.sleep(6.0)
        refused = await faked.embed("1")
    assert "test-model scores and does not embed" in str(refused.failure)
    async with FakedPipeline(new_engine(DESCRIPTION)).started() as faked:
        await asyncio.sleep(6.0)
        answer = await answered(faked, rank("5", "7"))
    assert "test-model embeds and does not score" in answer.status.message


@in_virtual_time
async def test_a_poison_pair_is_found_among_pairs_of_the_same_ids() -> None:
    engines = [new_engine(replace(TYPED, address=f"s:{n}"), poison=frozenset({13})) for n in (1, 2)]
    async with FakedPipeline(*engines).started() as faked:
        answer = await answered(faked, rank("5", *map(str, range(10, 20))))
    failed = [each.index for each in answer.results if each.status.code]
    assert failed == [3]
    assert len(answer.results) == 10


@in_virtual_time
async def test_a_lost_server_loses_no_document() -> None:
    engines = [new_engine(replace(PLAIN, address="s:1"), failures=[ModelServerLost("gone")])]
    engines.append(new_engine(replace(PLAIN, address="s:2")))
    async with FakedPipeline(*engines).started() as faked:
        answer = await answered(faked, rank("5", *map(str, range(10, 60))))
    assert [(each.index, each.score) for each in answer.results] == [(i, 20.0 + i) for i in reversed(range(50))]


@in_virtual_time
async def test_a_query_behind_a_thousand_documents_goes_with_the_next_batch() -> None:
    engine = new_engine()
    step_s = CURVE.time_s(CURVE.saturation_point)
    async with FakedPipeline(engine, max_held_tokens=100_000).started() as faked:
        many = requested(faked, rank("5", *map(str, range(1000, 2000)), tenant="many"))
        faked.grpc.batcher.add(many)
        waits_s: list[float] = []
        for number in range(10):
            await asyncio.sleep(0.0123)
            began_s = asyncio.get_running_loop().time()
            answer = await answered(faked, rank("5", str(3000 + number), tenant="one"))
            waits_s.append(asyncio.get_running_loop().time() - began_s)
            assert answer.status.code == 0
        assert many.remaining > 0
        await call_of(many).wait()
    assert not isinstance(many.outcomes[0], Failure)
    assert all(isinstance(outcome, Vector) for outcome in many.outcomes)
    assert max(waits_s) <= 3 * step_s  # the step that runs, the one that is staged behind it, and the next: its own
