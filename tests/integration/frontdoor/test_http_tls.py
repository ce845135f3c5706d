"""TLS, mTLS and rotation over HTTP: the certificates and rules of gRPC."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from aggregator.request.request import Request
from aggregator.sources.calls.calls import CallBatcher
from tests.integration.frontdoor.test_http import OPEN
from tests.integration.frontdoor.test_tls import served_name, tls
from tests.support.certificates import Authority, Pair
from tests.support.listening import Listening, listening


def trusting(authority: Authority, folder: Path, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.cert.decode())
    if client is not None:
        context.load_cert_chain(*client.write(folder, "client"))
    return context


async def embeds(door: Listening, context: ssl.SSLContext) -> bool:
    """Whether a new connection gets an answer."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        try:
            async with session.post(f"https://{door.http}/v1/embeddings", json={"input": "rain"}) as response:
                return response.status == 200
        except (aiohttp.ClientConnectionError, ssl.SSLError):
            return False


async def test_a_client_that_trusts_the_authority_gets_in(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings={"grpc": {"tls": tls(tmp_path)}, **OPEN}) as door:
        assert await embeds(door, trusting(authority, tmp_path))
        assert not await embeds(door, trusting(Authority("another"), tmp_path))
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(f"http://{door.http}/health")


async def test_with_mtls_clients_of_the_authority_get_in_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(), Authority("another")
    authority.issue("server").write(tmp_path, "server")
    seen: list[Request] = []
    add = CallBatcher.add

    def watched(batcher: CallBatcher, request: Request) -> None:
        seen.append(request)
        add(batcher, request)

    monkeypatch.setattr(CallBatcher, "add", watched)
    grpc = {"tls": tls(tmp_path, authority.cert), "authentication": {"client_certificates": True}}
    names = [("client", None), ("client", "spiffe://example.org/search"), (None, None)]
    async with listening(settings={"grpc": grpc, **OPEN}) as door:
        for common_name, uri in names:
            assert await embeds(door, trusting(authority, tmp_path, authority.issue(common_name, uri=uri)))
        assert not await embeds(door, trusting(authority, tmp_path, other.issue("client")))
        assert not await embeds(door, trusting(authority, tmp_path))
    assert [request.tenant for request in seen] == ["client", "spiffe://example.org/search", "localhost"]


async def test_rotated_certificates_are_shown_without_a_restart_and_no_call_fails(tmp_path: Path) -> None:
    authority, old, new = Authority(), Authority("old"), Authority("new")
    authority.issue("first").write(tmp_path, "server")
    settings = {"grpc": {"tls": tls(tmp_path, old.cert)}, **OPEN}
    before = trusting(authority, tmp_path, old.issue("client"))
    async with (
        listening(settings=settings) as door,
        aiohttp.ClientSession(f"https://{door.http}", connector=aiohttp.TCPConnector(ssl=before)) as session,
    ):

        async def name() -> str:
            return await asyncio.to_thread(served_name, door.http, authority.cert)

        async with session.post("/v1/embeddings", json={"input": "rain"}) as response:
            assert response.status == 200
        assert await name() == "first"
        authority.issue("second").write(tmp_path, "server")
        (tmp_path / "client-ca.crt").write_bytes(new.cert)
        await asyncio.sleep(1.1)
        assert await name() == "second"
        async with session.post("/v1/embeddings", json={"input": "rain"}) as response:
            assert response.status == 200, "a connection that is open stays"
        assert await embeds(door, trusting(authority, tmp_path, new.issue("client")))
        assert not await embeds(door, before)
