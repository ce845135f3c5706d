"""With authentication on, a call's tenant is its credential's, and no field or header can say another."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from aggregator.core.query import Source
from aggregator.request import Request
from protos.embedding.v1 import embedding_pb2 as pb
from tests.fakes.certificates import Authority
from tests.integration.frontdoor.door import Door, ask, front_door

ISSUER, AUDIENCE = "https://issuer.test", "embeddings"


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


async def tenant_of(door: Door, metadata: Any = (), **fields: Any) -> str:
    """The tenant under which the pipeline takes a call, or the code of its refusal."""
    seen: list[Request] = []
    submit = door.pipeline.submit

    def watched(request: Request) -> None:
        seen.append(request)
        submit(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door.pipeline, "submit", watched)
        try:
            await door.stub.Embed(ask("rain", **fields), metadata=tuple(metadata))
        except grpc.aio.AioRpcError as error:
            return error.code().name
    assert seen[0].source is Source.GRPC
    return seen[0].tenant


def static(folder: Path, *lines: str) -> dict[str, Any]:
    (folder / "tokens").write_text("\n".join(("# tenants", "", *lines)))
    return {"grpc": {"authentication": {"tokens_file": folder / "tokens"}}}


async def test_without_authentication_a_caller_may_name_its_tenant() -> None:
    async with front_door() as door:
        assert await tenant_of(door) == ""
        assert await tenant_of(door, tenant="field") == "field"
        assert await tenant_of(door, [("x-tenant", "header")]) == "header"


async def test_a_listed_token_names_the_tenant_and_nothing_else_does(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret-of-b").hexdigest()
    async with front_door(settings=static(tmp_path, "team-a secret-of-a", f"team-b sha256:{digest}")) as door:
        assert await tenant_of(door, bearer("secret-of-a")) == "team-a"
        assert await tenant_of(door, bearer("secret-of-b")) == "team-b"
        forged = [*bearer("secret-of-a"), ("x-tenant", "team-b")]
        assert await tenant_of(door, forged, tenant="team-b") == "team-a"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearer("wrong"),
        [("authorization", "secret-of-a")],
        [("authorization", "Basic secret-of-a")],
        [("authorization", "Bearer ")],
        [("x-tenant", "team-a")],
    ],
)
async def test_a_call_without_a_good_token_is_refused_everywhere(tmp_path: Path, metadata: Any) -> None:
    async with front_door(settings=static(tmp_path, "team-a secret-of-a")) as door:
        assert await tenant_of(door, metadata, tenant="team-a") == "UNAUTHENTICATED"
        for call in (
            anext(aiter(door.stub.EmbedStream(iter([ask("rain")]), metadata=tuple(metadata)))),
            door.stub.ListModels(pb.ListModelsRequest(), metadata=tuple(metadata)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_changed_list_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    async with front_door(settings=static(tmp_path, "team-a old-token")) as door:
        assert await tenant_of(door, bearer("old-token")) == "team-a"
        static(tmp_path, "team-a new-token")
        await asyncio.sleep(1.1)
        assert await tenant_of(door, bearer("new-token")) == "team-a"
        assert await tenant_of(door, bearer("old-token")) == "UNAUTHENTICATED"


async def test_no_token_is_ever_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with front_door(settings=static(tmp_path, "team-a secret-of-a")) as door:
        await tenant_of(door, bearer("secret-of-a"))
        await tenant_of(door, bearer("secret-guess"))
        static(tmp_path, "team-a secret-of-a and too much")
        await asyncio.sleep(1.1)
        assert await tenant_of(door, bearer("secret-of-a")) == "team-a"  # the last good list stays
    assert "could not be read" in caplog.text
    assert "secret" not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


class Keys:
    """An issuer of JWTs, with one key of each kind."""

    def __init__(self) -> None:
        self.rsa, self.ec = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())

    def write(self, folder: Path) -> dict[str, Any]:
        keys = [
            {**json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key())), "kid": "rsa", "alg": "RS256"},
            {**json.loads(ECAlgorithm.to_jwk(self.ec.public_key())), "kid": "ec", "alg": "ES256"},
        ]
        (folder / "jwks.json").write_text(json.dumps({"keys": keys}))
        return {
            "jwks_file": folder / "jwks.json",
            "jwt_issuer": ISSUER,
            "jwt_audience": AUDIENCE,
            "jwt_tenant_claim": "tenant",
        }

    def token(self, kid: str = "ec", *, leave_out: str = "", **claims: Any) -> str:
        body = {"tenant": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, **claims}
        body.pop(leave_out, None)
        key, algorithm = (self.rsa, "RS256") if kid == "rsa" else (self.ec, "ES256")
        return jwt.encode(body, key, algorithm, {"kid": kid})


async def test_a_signed_token_names_the_tenant_in_its_claim(tmp_path: Path) -> None:
    keys = Keys()
    async with front_door(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
        for kid in ("rsa", "ec"):
            assert await tenant_of(door, bearer(keys.token(kid)), tenant="team-b") == "team-a"
        assert await tenant_of(door, bearer(keys.token(tenant="team-c"))) == "team-c"


async def test_a_token_that_is_not_what_it_should_be_is_refused(tmp_path: Path) -> None:
    keys, strangers = Keys(), Keys()
    public = keys.ec.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    body = {"tenant": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600}
    bad = {
        "another's signature": strangers.token(),
        "expired": keys.token(exp=time.time() - 60),
        "not yet valid": keys.token(nbf=time.time() + 300),
        "another issuer": keys.token(iss="https://other.test"),
        "another audience": keys.token(aud="other"),
        "no expiry": keys.token(leave_out="exp"),
        "no tenant": keys.token(leave_out="tenant"),
        "an empty tenant": keys.token(tenant=""),
        "a tenant that is no text": keys.token(tenant=["team-a"]),
        "an unknown key": keys.token("other"),
        "no signature": jwt.encode(body, "", "none", {"kid": "ec"}),
        "a public key as a secret": jwt.encode(body, hashlib.sha256(public).digest(), "HS256", {"kid": "ec"}),
        "no token": "a.b.c",
    }
    async with front_door(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
        found = {name: await tenant_of(door, bearer(token)) for name, token in bad.items()}
    assert found == dict.fromkeys(bad, "UNAUTHENTICATED")


async def test_a_token_is_good_no_longer_than_it_says_on_an_open_stream_too(tmp_path: Path) -> None:
    keys = Keys()
    async with front_door(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
        expires_s = int(time.time()) - 25  # and 30 s of leeway for clocks
        token = keys.token(exp=expires_s)
        assert await tenant_of(door, bearer(token)) == "team-a"

        async def slowly() -> AsyncIterator[pb.EmbedRequest]:
            yield ask("rain")
            await asyncio.sleep(expires_s + 30.1 - time.time())
            yield ask("snow")

        answers = [answer async for answer in door.stub.EmbedStream(slowly(), metadata=tuple(bearer(token)))]
        assert [answer.status.code for answer in answers] == [0, 16]
        assert await tenant_of(door, bearer(token)) == "UNAUTHENTICATED"


async def test_a_client_certificate_names_the_tenant(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    (tmp_path / "ca.crt").write_bytes(authority.cert)
    tls = {
        "cert_file": tmp_path / "server.crt",
        "key_file": tmp_path / "server.key",
        "client_ca_file": tmp_path / "ca.crt",
    }
    settings = {"grpc": {"tls": tls, "authentication": {"client_certificates": True}}}
    for pair, tenant in (
        (authority.issue("team-a"), "team-a"),
        (
            authority.issue("pod", uri="spiffe://cluster.local/ns/search/sa/api"),
            "spiffe://cluster.local/ns/search/sa/api",
        ),
    ):
        credentials = grpc.ssl_channel_credentials(authority.cert, pair.key, pair.cert)
        async with front_door(settings=settings, credentials=credentials) as door:
            assert await tenant_of(door, tenant="forged") == tenant
