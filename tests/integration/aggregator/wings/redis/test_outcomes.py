"""What becomes of requests when Redis, or what stands in it, is not as it should be: each case has a name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aggregator.admission.ledger import Intake
from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.wings.redis.connection import prepare_streams
from aggregator.wings.redis.settings import RedisClientSettings
from aggregator.wings.redis.source import RedisSource
from k8s.pod.errors import StartError
from loadtest.stack.part import Part
from loadtest.stack.redis import UNSYNCED, RedisServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.contract.aggregator.wings.redis.broker import RedisAsBroker
from tests.support.certificates import Authority
from tests.support.fake_source import reply_all
from tests.support.until import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TOO_LONG = Failure(Code.OUT_OF_RANGE, "too long")
EVENTS = "tokenbatch.source.events"
OPERATE = Path("docs/operate.md").read_text(encoding="utf-8")


def message(request_id: str, text: str = "a") -> bytes:
    return pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)]).SerializeToString()


async def take(source: RedisSource, count: int, timeout_s: float = 20.0) -> list[Request]:
    taken: list[Request] = []
    async with asyncio.timeout(timeout_s):
        while len(taken) < count:
            taken += await source.receivers[0]()
    return taken


async def complete(source: RedisSource, requests: Sequence[Request]) -> None:
    for request in requests:
        request.fail(TOO_LONG)
    await reply_all(source, requests)


async def test_a_claim_takes_what_fits_the_room_and_never_less_than_one(broker: RedisAsBroker) -> None:
    for tokens in (b"4", b"5", b"6", b"100", b"1"):
        await broker.send(message(""), token_count=tokens)
    broker.room_tokens = 10
    async with broker.opened() as source:
        assert [len(await source.receivers[0]()) for _ in range(4)] == [2, 1, 1, 1]


async def test_an_expired_entry_needs_no_room_and_its_deadline_has_passed(broker: RedisAsBroker) -> None:
    await broker.send(message("late"), token_count=b"1000", expire=b"%d" % (time.time() - 5))
    await broker.send(message("soon"), token_count=b"10", expire=b"%d" % (time.time() + 60))
    broker.room_tokens = 10
    async with broker.opened() as source:
        late, soon = await take(source, 2)
        now_s = time.monotonic()
        assert late.deadline_s < now_s < soon.deadline_s < now_s + 61


@pytest.mark.parametrize(
    ("expire", "told"),
    [
        (b"soon", "field expire must be a Unix time in seconds, got 'soon'"),
        (b"nan", "field expire must be a Unix time in seconds, got 'nan'"),
        (b"inf", "field expire must be a Unix time in seconds, got 'inf'"),
        (b"\xff", "field expire is not UTF-8"),
        (
            b"1700000000000",
            "field expire must be a Unix time in seconds, got 1700000000000, which looks like milliseconds",
        ),
        (
            b"1.7e15",
            "field expire must be a Unix time in seconds, got 1.7e15, which looks like microseconds",
        ),
        (
            b"1700000000000000000",
            "field expire must be a Unix time in seconds, got 1700000000000000000, which looks like nanoseconds",
        ),
    ],
)
async def test_an_expiry_that_is_no_time_is_refused(broker: RedisAsBroker, expire: bytes, told: str) -> None:
    await broker.send(message("odd"), expire=expire)
    await broker.send(message("good"))
    async with broker.opened() as source:
        assert [request.request_id for request in await take(source, 1)] == ["good"]
        [reply] = [pb.EmbedResponse.FromString(value) for value in await broker.replies()]
        assert (reply.status.code, reply.status.message) == (Code.INVALID_ARGUMENT, told)


async def test_a_value_too_large_never_leaves_redis_and_is_told_its_size(broker: RedisAsBroker) -> None:
    await broker.send(b"x" * (4 * 1024 * 1024 + 1), content_type=b"text/plain", request_id=b"big")
    await broker.send(message("good"))
    async with broker.opened() as source:
        assert [request.request_id for request in await take(source, 1)] == ["good"]
        [value] = await broker.replies()
        assert b"4194305 bytes" in value
        assert b'"requestId":"big"' in value
        [(kept, fields)] = await broker.letters()
        assert (kept, fields["value-size"], fields["dlt-error-code"]) == (b"", b"4194305", b"INVALID_ARGUMENT")


async def test_other_fields_that_are_too_large_never_leave_redis(broker: RedisAsBroker) -> None:
    await broker.send(message("large"), notes=b"x" * 3_000_000, correlation_id=b"c")
    await broker.send(message("many"), **{f"field{number}": b"x" * 1000 for number in range(100)})
    await broker.send(message("good"), notes=b"x" * 60_000)
    async with broker.opened() as source:
        assert [request.request_id for request in await take(source, 1)] == ["good"]
        replies = [pb.EmbedResponse.FromString(value) for value in await broker.replies()]
        assert [reply.status.code for reply in replies] == [Code.INVALID_ARGUMENT] * 2
        letters = [fields for _, fields in await broker.letters()]
        assert sum(map(len, letters[0].values())) < 1000
        assert (letters[0]["correlation_id"], letters[0]["other-size"]) == (b"c", b"3000020")


async def test_an_entry_without_a_value_is_undecodable(broker: RedisAsBroker) -> None:
    await broker.client.xadd(broker.requests, {"nothing": "here"})
    await broker.send(message("good"))
    async with broker.opened() as source:
        await take(source, 1)
        assert [fields["dlt-error-code"] for _, fields in await broker.letters()] == [b"DATA_LOSS"]


async def test_a_full_redis_pauses_intake_until_there_is_room_and_loses_nothing(own: RedisServer) -> None:
    broker = RedisAsBroker(own.address)
    await broker.send(message("first"))
    await broker.send(message("second"))
    async with broker.opened() as source:
        broker.room_tokens = 3
        requests = await take(source, 1)
        await broker.client.config_set("maxmemory", "1")
        replying = asyncio.create_task(complete(source, requests))
        await until(lambda: "full" in broker.counted(EVENTS))
        receiving = asyncio.create_task(take(source, 1))
        await asyncio.sleep(1.2)
        assert not replying.done()
        assert not receiving.done()
        assert any(each.paused for each in source.backlogs())
        await broker.client.config_set("maxmemory", "0")
        await replying
        await complete(source, await receiving)
        assert not any(each.paused for each in source.backlogs())
        assert len(await broker.replies()) == 2
        assert await broker.unfinished() == 0
    await broker.close()


async def test_a_flushed_script_cache_is_filled_again(broker: RedisAsBroker) -> None:
    async with broker.opened() as source:
        for each in range(3):
            await broker.send(message(f"q{each}"))
            [request] = await take(source, 1)
            await complete(source, [request])
            await broker.client.script_flush()
        assert broker.counted(EVENTS)["scripts_flushed"] >= 1
        assert len(await broker.replies()) == 3


async def test_a_key_of_another_type_stops_its_stream_until_it_is_gone(broker: RedisAsBroker) -> None:
    async with broker.opened() as source:
        await broker.send(message("before"))
        await complete(source, await take(source, 1))
        await broker.client.delete(broker.requests)
        await broker.client.lpush(broker.requests, "no stream")
        receiving = asyncio.create_task(take(source, 1, 30.0))
        await until(lambda: "wrong_type" in broker.counted(EVENTS))
        assert not receiving.done()
        await broker.client.delete(broker.requests)
        await broker.send(message("after"))
        assert [request.request_id for request in await receiving] == ["after"]
        assert "no_group" in broker.counted(EVENTS)


async def test_a_start_with_a_key_of_another_type_fails_and_says_so(broker: RedisAsBroker) -> None:
    await broker.client.lpush(broker.out, "no stream")
    with pytest.raises(StartError, match=r"no stream: rename the key"):
        await prepare_streams(broker.settings, 5.0)


async def test_a_reply_that_its_key_does_not_take_becomes_a_dead_letter(broker: RedisAsBroker) -> None:
    async with broker.opened() as source:
        await broker.send(message("q"))
        requests = await take(source, 1)
        await broker.client.delete(broker.out)
        await broker.client.set(broker.out, "no stream")
        await complete(source, requests)
        assert requests[0].code is Code.INTERNAL
        assert broker.counted("tokenbatch.replies.unwritten") == {"refused": 1}
        assert broker.counted("tokenbatch.dead_letters") == {"INTERNAL": 1}
        [(value, fields)] = await broker.letters()
        assert (value, fields["dlt-error-message"]) == (message("q"), b"the reply could not be written: wrong_type")
        assert await broker.unfinished() == 0


async def test_a_caller_waits_for_its_reply_at_a_list_that_expires(shared: RedisServer) -> None:
    broker = RedisAsBroker(shared.address, allowed_replies=("list:caller:*",))
    async with broker.opened() as source:
        await broker.send(message("q"), reply_to=b"list:caller:1")
        waiting = asyncio.create_task(broker.client.blpop(["caller:1"], 5))
        await complete(source, await take(source, 1))
        _, value = await waiting
        assert pb.EmbedResponse.FromString(value).request_id == "q"
        await broker.send(message("q"), reply_to=b"list:caller:2")
        await complete(source, await take(source, 1))
        assert 0 < await broker.client.ttl("caller:2") <= 60
        assert not await broker.replies()
    await broker.close()


async def test_routing_fields_are_echoed_and_replies_are_trimmed(shared: RedisServer) -> None:
    broker = RedisAsBroker(shared.address, client=RedisClientSettings(max_stream_length=10))
    async with broker.opened() as source:
        await broker.send(message("q"), correlation_id=b"c", traceparent=b"t", other=b"o")
        await complete(source, await take(source, 1))
        [(_, fields)] = await broker.client.xrange(broker.out)
        assert {name: fields[name] for name in fields if name != b"value"} == {
            b"content-type": b"application/x-protobuf",
            b"correlation_id": b"c",
            b"traceparent": b"t",
        }
        for each in range(300):
            await broker.send(message(f"q{each}"))
        await complete(source, await take(source, 300))
        assert await broker.client.xlen(broker.out) < 300
    await broker.close()


async def test_a_silent_consumer_is_taken_over_and_a_living_one_is_not(broker: RedisAsBroker) -> None:
    for each in range(4):
        await broker.send(message(f"q{each}"), token_count=b"10")
    broker.room_tokens = 20
    async with broker.opened() as living:
        kept = await take(living, 2)
        async with broker.opened() as silent:
            lost = await take(silent, 2)
        began_s = time.monotonic()
        taken = await take(living, 2)
        assert [request.request_id for request in taken] == [request.request_id for request in lost]
        assert time.monotonic() - began_s >= 0.5
        assert broker.counted(EVENTS) == {"taken_over": 2}
        async with broker.opened() as other:
            with suppress(TimeoutError):
                await take(other, 1, 2.5)
                pytest.fail("it took over what a living consumer holds")
        await complete(living, [*kept, *taken])


async def test_large_entries_of_a_silent_consumer_are_taken_a_few_at_a_time(broker: RedisAsBroker) -> None:
    for each in range(40):
        await broker.send(message(f"q{each}", "a" * 100_000), token_count=b"1")
    async with broker.opened() as silent:
        lost = await take(silent, 40)
    async with broker.opened() as living:
        taken: list[Request] = []
        async with asyncio.timeout(20):
            while len(taken) < 40:
                taken += (received := await living.receivers[0]())
                assert len(received) <= 16
        assert {request.request_id for request in taken} == {request.request_id for request in lost}


async def test_a_stop_leaves_what_is_not_answered_to_others_at_once(shared: RedisServer) -> None:
    broker = RedisAsBroker(shared.address, client=RedisClientSettings().model_copy(update={"takeover_idle_s": 600.0}))
    await broker.send(message("q"))
    async with broker.opened() as source:
        await take(source, 1)
        await source.stop(0.0)
        assert await source.receivers[0]() == ()
        await source.close(1.0)
    async with broker.opened() as other:
        assert [request.request_id for request in await take(other, 1)] == ["q"]
        await complete(other, [])
    await broker.close()


async def test_a_stop_leaves_to_others_what_a_claim_took_whose_answer_was_lost(shared: RedisServer) -> None:
    broker = RedisAsBroker(shared.address, client=RedisClientSettings().model_copy(update={"takeover_idle_s": 600.0}))
    await broker.send(message("first"))
    async with broker.opened() as source:
        await complete(source, await take(source, 1))
        [consumer] = await broker.client.xinfo_consumers(broker.requests, broker.settings.group_id)
        await broker.send(message("q"))
        await broker.client.xreadgroup(broker.settings.group_id, consumer["name"], {broker.requests: ">"})
        await source.stop(0.0)
        await source.close(1.0)
    async with broker.opened() as other:
        assert [request.request_id for request in await take(other, 1)] == ["q"]
        await complete(other, [])
    await broker.close()


async def test_a_stop_forgets_a_consumer_that_holds_nothing(broker: RedisAsBroker) -> None:
    await broker.send(message("first"))
    async with broker.opened() as source:
        await complete(source, await take(source, 1))
        assert len(await broker.client.xinfo_consumers(broker.requests, broker.settings.group_id)) == 1
        await source.close(1.0)
    assert await broker.client.xinfo_consumers(broker.requests, broker.settings.group_id) == []


async def test_a_restart_of_redis_is_waited_for(own: RedisServer) -> None:
    broker = RedisAsBroker(own.address)
    async with broker.opened() as source:
        await broker.send(message("before"))
        requests = await take(source, 1)
        own.kill()
        replying = asyncio.create_task(complete(source, requests))
        receiving = asyncio.create_task(take(source, 1, 30.0))
        await until(lambda: "unreachable" in broker.counted(EVENTS))
        assert not replying.done()
        await asyncio.to_thread(own.start)
        await replying
        await broker.send(message("after"))
        assert [request.request_id for request in await receiving] == ["after"]
        assert source.server.healthy
    await broker.close()


ACL = (
    *("user", "tokenbatch", "on", ">secret", "resetkeys", "~*-in", "~*-in-dlt", "~*-out", "-@all"),
    *("+@connection", "+eval", "+evalsha", "+xadd", "+xrange", "+xlen", "+xread", "+xreadgroup", "+xpending", "+xack"),
    *("+xdel", "+xclaim", "+xautoclaim", "+xinfo", "+xgroup", "+exists", "+time", "+rpush", "+pexpire"),
)


async def test_a_user_with_the_documented_rights_is_enough(own: RedisServer) -> None:
    with own.client() as admin:
        admin.execute_command("ACL", "SETUSER", *ACL[1:])
    assert " ".join(ACL[9:]) in " ".join(OPERATE.split())
    broker = RedisAsBroker(own.address, user={"username": "tokenbatch", "password": "secret"})
    async with broker.opened() as source:
        await broker.send(message("q"))
        await broker.send(b"\xff")
        await complete(source, await take(source, 1))
        assert len(await broker.replies()) == 2
        assert len(await broker.letters()) == 1
        await asyncio.sleep(1.5)
        assert broker.counted(EVENTS) == {}
        with own.client() as admin:
            admin.execute_command("ACL", "SETUSER", "tokenbatch", "resetkeys", "~*-in", "~*-in-dlt")
        await broker.send(message("q"))
        requests = await take(source, 1)
        await complete(source, requests)
        assert requests[0].code is Code.INTERNAL
        assert broker.counted("tokenbatch.replies.unwritten") == {"forbidden": 1}
    await broker.close()


@pytest.mark.parametrize("password", ["", "wrong"])
async def test_a_start_without_the_right_password_fails_and_says_so(own: RedisServer, password: str) -> None:
    with own.client() as admin:
        admin.config_set("requirepass", "secret")
    broker = RedisAsBroker(own.address, user={"password": password})
    with pytest.raises(StartError, match="may not log in"):
        await prepare_streams(broker.settings, 5.0)
    await broker.close()


async def test_a_password_file_is_used_and_one_that_is_not_there_is_named(own: RedisServer, tmp_path: Path) -> None:
    with own.client() as admin:
        admin.config_set("requirepass", "secret")
    file = tmp_path / "password"
    file.write_text("secret\n")
    broker = RedisAsBroker(own.address, user={"password_file": file})
    assert await prepare_streams(broker.settings, 5.0) == []
    await broker.close()
    file.unlink()
    with pytest.raises(StartError, match=r"redis\.(tls|user)\.\w+_file: .* cannot be read"):
        await prepare_streams(broker.settings, 5.0)


async def test_a_redis_that_is_not_there_is_named(tmp_path: Path) -> None:
    del tmp_path
    broker = RedisAsBroker("localhost:1")
    with pytest.raises(StartError, match="redis localhost:1: it cannot be reached"):
        await prepare_streams(broker.settings, 0.3)
    await broker.close()


async def test_without_persistence_a_start_warns(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", settings={"appendonly": "no"}) as server:
        broker = RedisAsBroker(server.address)
        [warning] = await prepare_streams(broker.settings, 5.0)
        assert "appendonly is off" in warning
        await broker.close()


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority("another")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.cert)
    other_ca = tmp_path / "other.crt"
    other_ca.write_bytes(stranger.cert)
    server_cert, server_key = authority.issue("redis").write(tmp_path, "server")
    cert, key = authority.issue("tokenbatch").write(tmp_path, "client")
    server = RedisServer(tmp_path / "redis", settings=UNSYNCED)
    server.settings |= {"tls-port": str(server.port), "port": "0", "tls-ca-cert-file": str(ca)}
    server.settings |= {"tls-cert-file": str(server_cert), "tls-key-file": str(server_key)}
    await asyncio.to_thread(server.launch)
    try:
        tls = {"enabled": True, "ca_file": ca, "cert_file": cert, "key_file": key}
        broker = RedisAsBroker(server.address, tls=tls)
        assert await prepare_streams(broker.settings, 20.0) == []
        async with broker.opened() as source:
            await broker.send(message("q"))
            await complete(source, await take(source, 1))
            assert len(await broker.replies()) == 1
        await broker.close()
        for wrong in ({**tls, "ca_file": other_ca}, {"enabled": True, "ca_file": ca}):
            refused = RedisAsBroker(server.address, tls=wrong)
            with pytest.raises(StartError, match="cannot be reached"):
                await prepare_streams(refused.settings, 0.3)
            await refused.close()
    finally:
        server.kill()


async def test_a_failover_by_sentinel_loses_no_entry(tmp_path: Path) -> None:
    master, replica = (RedisServer(tmp_path / name, settings=UNSYNCED) for name in ("master", "replica"))
    replica.settings["replicaof"] = f"127.0.0.1 {master.port}"
    sentinel = RedisServer(tmp_path / "sentinel")
    for name in tuple(sentinel.settings):
        del sentinel.settings[name]
    sentinel.settings |= {"sentinel monitor m 127.0.0.1": f"{master.port} 1"}
    sentinel.settings |= {"sentinel down-after-milliseconds m": "500", "sentinel failover-timeout m": "2000"}
    parts: list[Part] = [master, replica]
    try:
        for part in parts:
            await asyncio.to_thread(part.start)
        sentinel.options = ("--sentinel",)
        parts.append(sentinel)
        await asyncio.to_thread(sentinel.start)
        watched: Any = sentinel.client()
        await until(lambda: len(watched.sentinel_slaves("m")) == 1, 30.0)
        broker = RedisAsBroker(sentinel.address, sentinel="m")
        async with broker.opened() as source:
            for each in range(10):
                await broker.send(message(f"q{each}"))
            requests = await take(source, 10)
            await complete(source, requests[:5])
            with replica.client() as client:
                await until(lambda: client.xlen(broker.out) == 5)
            master.kill()
            replying = asyncio.create_task(complete(source, requests[5:]))
            await until(lambda: "unreachable" in broker.counted(EVENTS))
            await asyncio.wait_for(replying, 60.0)
            replies = [pb.EmbedResponse.FromString(value) for value in await broker.replies()]
            assert {reply.request_id for reply in replies} == {f"q{each}" for each in range(10)}
            assert await broker.unfinished() == 0
            await broker.send(message("after"))
            assert [request.request_id for request in await take(source, 1)] == ["after"]
        await broker.close()
        watched.close()
    finally:
        for part in parts:
            part.kill()


async def test_a_cluster_of_one_node_serves(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", settings={**UNSYNCED, "cluster-enabled": "yes"}) as server:
        with server.client() as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            info: Any = partial(admin.execute_command, "CLUSTER INFO")
            await until(lambda: info()["cluster_state"] == "ok")
        broker = RedisAsBroker(server.address, cluster=True)
        async with broker.opened() as source:
            for each in range(5):
                await broker.send(message(f"q{each}"))
            await broker.send(b"\xff")
            await complete(source, await take(source, 5))
            async with asyncio.timeout(20):
                while await broker.unfinished():  # noqa: ASYNC110 - Redis calls nobody
                    await asyncio.sleep(0.02)
            assert len(await broker.replies()) == 6
            assert len(await broker.letters()) == 1
        await broker.close()


async def test_requests_whose_replies_have_no_room_wait_for_those_on_their_way(broker: RedisAsBroker) -> None:
    broker.intake, broker.dimensions = Intake(1_000_000), 1000
    texts = pb.EmbedRequest(inputs=[pb.Input(text="a")] * 64).SerializeToString()  # 300 kB with their vectors
    for _ in range(5):
        await broker.send(texts)
    await broker.send(pb.EmbedRequest(inputs=[pb.Input(text="a")] * 300).SerializeToString())
    async with broker.opened() as source:
        counts: list[int] = []
        while sum(counts) < 5:
            taken = await source.receivers[0]()
            assert broker.intake.total < 1_100_000
            counts.append(len(taken))
            await complete(source, taken)
        assert max(counts) < 4
        await until(lambda: not broker.intake.total)  # the last one is refused: it never fits
