"""EmbedStream answers as requests complete, reads no further than it answers, and ends for nobody's mistake."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aggregator.request.request import Request
from aggregator.sources.wire.encode import to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.frontdoor.test_embed import expected, ids_of
from tests.support.listening import Listening, ask, floats, listening, refused, slow_engine
from tests.support.until import until

LONG = "word " * 60


class Asking:
    """A stream whose client goes on asking: `ask` one more, while `answers` come, until it `ended`, and how."""

    def __init__(self, door: Listening) -> None:
        self.answers: list[pb.EmbedResponse] = []
        self._asked: asyncio.Queue[pb.EmbedRequest] = asyncio.Queue()
        self._taking = asyncio.create_task(self._take(door.stub.EmbedStream(self._messages())))

    def ask(self, *names: str) -> None:
        for name in names:
            self._asked.put_nowait(ask(name, request_id=name))

    async def ended(self) -> tuple[grpc.StatusCode, str | None]:
        async with asyncio.timeout(30):
            return await self._taking

    async def _messages(self) -> AsyncIterator[pb.EmbedRequest]:
        while True:
            yield await self._asked.get()

    async def _take(self, stream: Any) -> tuple[grpc.StatusCode, str | None]:
        try:
            async for answer in stream:
                self.answers.append(answer)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, None


async def exchange(door: Listening, *messages: pb.EmbedRequest, **options: Any) -> list[pb.EmbedResponse]:
    return [answer async for answer in door.stub.EmbedStream(iter(messages), **options)]


async def test_every_request_is_answered_by_its_id() -> None:
    async with listening() as door:
        answers = await exchange(door, *(ask(f"question {number}", request_id=str(number)) for number in range(500)))
    assert sorted(int(answer.request_id) for answer in answers) == list(range(500))
    assert all(answer.status.code == 0 and len(answer.embeddings) == 1 for answer in answers)


async def test_answers_come_as_they_complete_not_as_they_were_asked() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        asking = Asking(door)
        asking.ask("slow")
        await until(lambda: engine.queries)
        asking.ask("")
        await until(lambda: asking.answers)
        engine.gate.set()
        await until(lambda: len(asking.answers) == 2)
        await door.server.stop(0)
        await asking.ended()
    assert [answer.request_id == "slow" for answer in asking.answers] == [False, True]


async def test_bad_requests_get_their_status_and_the_stream_goes_on() -> None:
    async with listening() as door:
        answers = await exchange(
            door,
            ask("rain", request_id="good"),
            ask(request_id="none"),
            ask("", request_id="empty"),
            ask(LONG * 2, request_id="long"),
            ask("rain", request_id="option", encoding=99),
            ask("rain", request_id="model", model="other"),
            ask("rain", "", request_id="half"),
            ask("snow", request_id="last"),
        )
    codes = {answer.request_id: answer.status.code for answer in answers}
    assert codes == {"good": 0, "none": 3, "empty": 3, "long": 11, "option": 3, "model": 5, "half": 3, "last": 0}


async def test_an_answer_that_cannot_be_made_harms_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_for_one(request: Request, reply_id: str) -> bytes:
        if request.request_id == "odd":
            raise ValueError("no answer")
        return to_protobuf(request, reply_id)

    monkeypatch.setattr("aggregator.wings.stream.open_stream.to_protobuf", fails_for_one)
    async with listening() as door:
        answers = await exchange(door, ask("rain", request_id="odd"), ask("snow", request_id="even"))
    assert {answer.request_id: answer.status.code for answer in answers} == {"odd": 13, "even": 0}


async def test_nothing_more_is_read_than_the_window_while_nobody_takes_answers() -> None:
    engine = slow_engine()
    async with listening(engine, limits={"stream_window": 8}) as door:
        engine.gate.clear()
        sent, seen, last = 0, -1, 20_000

        async def messages() -> AsyncIterator[pb.EmbedRequest]:
            nonlocal sent
            for sent in range(1, last + 1):
                yield ask("word " * 50, request_id=str(sent))

        stream = door.stub.EmbedStream(messages())
        await until(lambda: engine.queries)
        while seen != sent:  # what the sockets and HTTP/2's window hold, which grows, is sent all the same
            seen = sent
            await asyncio.sleep(0.3)
        assert engine.queries + len(door.models.in_service()[0].dispatcher.queue) <= 8
        assert sent < last  # the rest waits at the client
        engine.gate.set()
        answers = aiter(stream)
        assert len([await anext(answers) for _ in range(100)]) == 100
        assert sent < last
        stream.cancel()


async def test_a_cancelled_stream_leaves_nothing_in_the_queue() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        stream = door.stub.EmbedStream(iter([ask(LONG, request_id=str(number)) for number in range(100)]))
        await until(lambda: len(door.models.in_service()[0].dispatcher.queue) > 50)
        before = engine.queries
        stream.cancel()
        await until(lambda: not door.held_tokens)
        engine.gate.set()
        await door.stub.Embed(ask("next"))
    assert engine.queries <= before + 1 + 16  # what was staged already is computed, and nothing else


async def test_the_streams_deadline_is_that_of_its_requests() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        late = exchange(door, *(ask(LONG) for _ in range(50)), timeout=1)
        await refused(late, grpc.StatusCode.DEADLINE_EXCEEDED)
        await until(lambda: not door.held_tokens)


async def test_a_request_that_a_server_holds_is_answered_at_its_own_deadline() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        late, other = ask("late", request_id="late"), ask("other", request_id="other")
        late.expire_time.FromMilliseconds(int((time.time() + 0.5) * 1000))
        stream = door.stub.EmbedStream(iter([late, other]))
        answer = await anext(aiter(stream))
        assert (answer.request_id, answer.status.code) == ("late", grpc.StatusCode.DEADLINE_EXCEEDED.value[0])
        assert engine.queries, "it was on its way"
        engine.gate.set()
        assert [each.request_id async for each in stream] == ["other"]
        await until(lambda: not door.held_tokens)


async def test_a_stop_answers_what_streams_have_read_and_ends_them() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        idle, busy = Asking(door), Asking(door)
        idle.ask("before")
        await until(lambda: idle.answers)
        engine.gate.clear()
        busy.ask("rain", "snow")
        await until(lambda: engine.queries + len(door.models.in_service()[0].dispatcher.queue) == 3)
        stopping = asyncio.create_task(door.server.stop(30))
        assert (await idle.ended())[0] is grpc.StatusCode.UNAVAILABLE
        busy.ask("too late")
        await asyncio.sleep(0.2)
        assert not busy.answers
        engine.gate.set()
        code, words = await busy.ended()
        async with asyncio.timeout(20):
            await stopping
    assert sorted(answer.request_id for answer in busy.answers) == ["rain", "snow"]
    assert all(not answer.status.code for answer in busy.answers)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "open a new one" in (words or "")


async def test_a_stop_leaves_streams_whose_client_said_all_to_end_well() -> None:
    engine = slow_engine()
    async with listening(engine) as door:
        engine.gate.clear()
        exchanging = asyncio.create_task(exchange(door, ask("rain"), ask("snow")))
        await until(lambda: engine.queries == 2)
        stopping = asyncio.create_task(door.server.stop(30))
        await asyncio.sleep(0.2)
        engine.gate.set()
        assert len(await exchanging) == 2
        await stopping


async def test_a_stream_is_over_before_its_connection_is_cut_off() -> None:
    async with listening(limits={"connection_grace_s": 2.0}) as door:
        stream, started_s = Asking(door), time.monotonic()
        stream.ask("rain")
        code, words = await stream.ended()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "open a new one" in (words or "")
        assert time.monotonic() - started_s > 1.6
        assert len(stream.answers) == 1
        assert len(await exchange(door, ask("snow"))) == 1


async def test_those_who_watch_health_do_not_hold_up_a_stop() -> None:
    async with listening() as door:
        health: Any = health_pb2_grpc.HealthStub(door.channel)  # the stubs know no Watch
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await anext(aiter(watch))).status == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(20):
            await door.server.stop(30)


async def test_large_answers_are_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: dict[str, bool] = {}
    make, here = to_protobuf, threading.current_thread()

    def noted(request: Request, reply_id: str) -> bytes:
        beside[request.request_id] = threading.current_thread() is not here
        return make(request, reply_id)

    monkeypatch.setattr("aggregator.request.kind._LARGE_BYTES", 10_000)
    monkeypatch.setattr("aggregator.wings.stream.open_stream.to_protobuf", noted)
    texts = [f"text {number}" for number in range(100)]
    async with listening() as door:
        messages = (ask(*texts, request_id="large"), ask("text 1", request_id="small"))
        answers = {answer.request_id: answer async for answer in door.stub.EmbedStream(iter(messages))}
    assert beside == {"large": True, "small": False}
    for text, embedding in zip(texts, answers["large"].embeddings, strict=True):
        np.testing.assert_allclose(floats(embedding), expected(ids_of(text)), atol=1e-6)
