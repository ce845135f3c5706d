"""With authentication on, a call's tenant is its credential's, and no field or header can say another."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.certificates import Authority
from tests.support.listening import Listening, ask, listening, refused, taken_calls

FAIRNESS_ID, OBJECTIVE = "x-gateway-inference-fairness-id", "x-gateway-inference-objective"
ISSUER, AUDIENCE = "https://issuer.test", "embeddings"


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


async def tenant_of(door: Listening, metadata: Any = (), **fields: Any) -> str:
    """The tenant under which the pipeline takes a call, or the code of its refusal."""
    with taken_calls() as taken:
        try:
            await door.stub.Embed(ask("rain", **fields), metadata=tuple(metadata))
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return taken[0].tenant


def static(folder: Path, *lines: str) -> dict[str, Any]:
    (folder / "tokens").write_text("\n".join(("# tenants", "", *lines)))
    return {"grpc": {"authentication": {"tokens_file": folder / "tokens"}}}


async def test_without_authentication_a_caller_may_name_its_tenant() -> None:
    async with listening() as door:
        assert await tenant_of(door) == ""
        assert await tenant_of(door, tenant="field") == "field"
        assert await tenant_of(door, [("x-tenant", "header")]) == "header"
        assert await tenant_of(door, [(FAIRNESS_ID, "flow")]) == "flow"
        assert await tenant_of(door, [(FAIRNESS_ID, "flow"), ("x-tenant", "header")]) == "header"
        assert await tenant_of(door, [(FAIRNESS_ID, "flow")], tenant="field") == "field"


@pytest.mark.parametrize(
    ("objective", "field", "taken_as"),
    [
        ("default", pb.PRIORITY_UNSPECIFIED, Priority.DEFAULT),
        ("background", pb.PRIORITY_UNSPECIFIED, Priority.BACKGROUND),
        ("background", pb.PRIORITY_INTERACTIVE, Priority.INTERACTIVE),
        ("food-review", pb.PRIORITY_UNSPECIFIED, Priority.INTERACTIVE),
    ],
)
async def test_a_gateway_s_objective_is_the_priority_where_a_request_names_none(
    objective: str, field: pb.Priority, taken_as: Priority
) -> None:
    async with (
        listening(settings={"http": {"bind": "127.0.0.1:0"}}) as door,
        aiohttp.ClientSession(f"http://{door.http}", headers={OBJECTIVE: objective, FAIRNESS_ID: "flow"}) as session,
    ):
        with taken_calls() as taken:
            await door.stub.Embed(ask("rain", priority=field), metadata=((OBJECTIVE, objective),))
            body = {"input": "rain"} | ({"priority": "interactive"} if field else {})
            async with session.post("/v1/embeddings", json=body) as response:
                assert response.status == 200
        assert [each.priority for each in taken] == [taken_as, taken_as]
        assert [each.tenant for each in taken] == ["", "flow"]


async def test_a_listed_token_names_the_tenant_and_nothing_else_does(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret-of-b").hexdigest()
    async with listening(settings=static(tmp_path, "team-a secret-of-a", f"team-b sha256:{digest}")) as door:
        assert await tenant_of(door, bearer("secret-of-a")) == "team-a"
        assert await tenant_of(door, bearer("secret-of-b")) == "team-b"
        forged = [*bearer("secret-of-a"), ("x-tenant", "team-b"), (FAIRNESS_ID, "team-b")]
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
    async with listening(settings=static(tmp_path, "team-a secret-of-a")) as door:
        assert await tenant_of(door, metadata, tenant="team-a") == "UNAUTHENTICATED"
        for call in (
            anext(aiter(door.stub.EmbedStream(iter([ask("rain")]), metadata=tuple(metadata)))),
            door.stub.ListModels(pb.ListModelsRequest(), metadata=tuple(metadata)),
        ):
            await refused(call, grpc.StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("name", ["authorization", "x-tenant", "x-gateway-inference-fairness-id"])
async def test_metadata_that_says_twice_who_calls_is_refused(tmp_path: Path, name: str) -> None:
    async with listening(settings=static(tmp_path, "team-a secret-of-a", "team-b secret-of-b")) as door:
        secrets = [*bearer("secret-of-a"), *bearer("secret-of-b")]
        metadata = secrets if name == "authorization" else [(name, "a"), (name, "b"), *bearer("secret-of-a")]
        error = await refused(door.stub.Embed(ask("rain"), metadata=tuple(metadata)), grpc.StatusCode.INVALID_ARGUMENT)
        assert error.details() == f"{name} is sent twice, which might name two callers: send it once"
        other = [*bearer("secret-of-a"), ("x-other", "1"), ("x-other", "2")]
        assert await tenant_of(door, other) == "team-a"


async def test_a_changed_list_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    async with listening(settings=static(tmp_path, "team-a old-token")) as door:
        assert await tenant_of(door, bearer("old-token")) == "team-a"
        static(tmp_path, "team-a new-token")
        await asyncio.sleep(1.1)
        assert await tenant_of(door, bearer("new-token")) == "team-a"
        assert await tenant_of(door, bearer("old-token")) == "UNAUTHENTICATED"


@pytest.mark.parametrize("now_listed", ["team-b the-token", "team-a another-token"], ids=["another's", "revoked"])
async def test_an_open_stream_ends_with_its_token_and_a_neighbour_s_goes_on(tmp_path: Path, now_listed: str) -> None:
    async with listening(settings=static(tmp_path, "team-a the-token", "team-c its-token")) as door:
        changed = asyncio.Event()

        async def asked() -> AsyncIterator[pb.EmbedRequest]:
            yield ask("rain")
            await changed.wait()
            yield ask("snow")

        async def answers(token: str) -> AsyncIterator[int]:
            async for answer in door.stub.EmbedStream(asked(), metadata=tuple(bearer(token))):
                yield answer.status.code

        streams = answers("the-token"), answers("its-token")
        assert [await anext(stream) for stream in streams] == [0, 0]
        static(tmp_path, now_listed, "team-c its-token")
        await asyncio.sleep(1.1)
        changed.set()
        assert [await anext(stream) for stream in streams] == [16, 0]


async def test_no_token_is_ever_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening(settings=static(tmp_path, "team-a secret-of-a")) as door:
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
        file = folder / "jwks.json"
        return {"jwt": {"jwks_file": file, "issuer": ISSUER, "audience": AUDIENCE, "tenant_claim": "tenant"}}

    def token(self, kid: str = "ec", *, leave_out: str = "", **claims: Any) -> str:
        body = {"tenant": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, **claims}
        body.pop(leave_out, None)
        key, algorithm = (self.rsa, "RS256") if kid == "rsa" else (self.ec, "ES256")
        return jwt.encode(body, key, algorithm, {"kid": kid})

    def signed(self, header: Mapping[str, Any] | bytes, body: Mapping[str, Any] | bytes) -> str:
        """A token that no library would make, and a good signature all the same."""
        parts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, body)]
        message = b".".join(base64url_encode(part) for part in parts)
        signature = ECAlgorithm(ECAlgorithm.SHA256).sign(message, self.ec)
        return b".".join((message, base64url_encode(signature))).decode()


async def test_a_signed_token_names_the_tenant_in_its_claim(tmp_path: Path) -> None:
    keys = Keys()
    async with listening(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
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
    async with listening(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
        found = {name: await tenant_of(door, bearer(token)) for name, token in bad.items()}
    assert found == dict.fromkeys(bad, "UNAUTHENTICATED")


ODD: tuple[Any, ...] = (True, None, [1], {}, math.inf, math.nan, 10**400, "soon", "9999999999")


async def test_a_signed_token_with_a_claim_or_header_of_another_type_is_refused(tmp_path: Path) -> None:
    keys = Keys()
    header = {"alg": "ES256", "kid": "ec"}
    body = {"tenant": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600}
    bad: dict[str, str] = {}
    for claim in ("exp", "nbf", "iat"):
        bad |= {f"{claim} {odd!r:.20}": keys.signed(header, {**body, claim: odd}) for odd in ODD}
    for claim in ("iss", "aud", "sub", "tenant"):
        bad |= {f"{claim} {odd!r:.20}": keys.signed(header, {**body, claim: odd}) for odd in ODD[:7]}
    bad |= {f"alg {odd!r:.20}": keys.signed({**header, "alg": odd}, body) for odd in ODD}
    bad |= {f"kid {odd!r:.20}": keys.signed({**header, "kid": odd}, body) for odd in ODD}
    bad |= {f"crit {odd!r:.20}": keys.signed({**header, "crit": odd}, body) for odd in ODD}
    bad |= {f"name {odd!r}": keys.signed(header, {**body, "tenant": odd}) for odd in ("", " ", " a", "a\0", "\ud800")}
    bad |= {
        "a deep header": keys.signed(b"[" * 5000, body),
        "deep claims": keys.signed(header, b"[" * 5000),
        "claims in a list": keys.signed(header, b"[1]"),
        "claims that are no UTF-8": keys.signed(header, b'{"tenant": "\xff"}'),
        "a number of 5,000 digits": keys.signed(header, b'{"exp": ' + b"9" * 5000 + b"}"),
    }
    async with listening(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
        assert await tenant_of(door, bearer(keys.signed(header, body))) == "team-a"
        found = {name: await tenant_of(door, bearer(token)) for name, token in bad.items()}
    assert found == dict.fromkeys(bad, "UNAUTHENTICATED")


ODD_KIDS: tuple[dict[str, Any], ...] = ({"kid": 5}, {"kid": ["ec"]}, {"kid": {}})
ODD_KEYS: tuple[dict[str, Any], ...] = (
    {"kty": 5},
    {"kty": ["EC"]},
    {"alg": ["ES256"]},
    {"alg": "none"},
    {"alg": 5},
    {"crv": ["P-256"]},
    {"x": 5},
    {"y": None},
    {"kty": "oct", "k": "c2VjcmV0", "alg": "RS256"},
    {"kty": "OKP", "crv": "X25519", "alg": "EdDSA"},
    {"use": "enc"},
    {"use": ["sig"]},
)


async def test_useless_keys_are_passed_over_and_a_private_one_serves_as_public(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys()
    settings = keys.write(tmp_path)
    good = json.loads((tmp_path / "jwks.json").read_text())["keys"]
    private = {**json.loads(RSAAlgorithm.to_jwk(keys.rsa)), "kid": "private"}
    named = [{**good[1], "kid": f"odd {number}", **changed} for number, changed in enumerate(ODD_KEYS)]
    unnamed = [{**good[1], **kid} for kid in ODD_KIDS]
    odd = [5, None, {}, *unnamed, *named]
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [*odd, private, *good]}))
    body = {"tenant": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600}
    async with listening(settings={"grpc": {"authentication": settings}}) as door:
        for kid in ("rsa", "ec"):
            assert await tenant_of(door, bearer(keys.token(kid))) == "team-a"
        of_private = jwt.encode(body, keys.rsa, "RS256", {"kid": "private"})
        assert await tenant_of(door, bearer(of_private)) == "team-a"
        for key in named:
            token = keys.signed({"alg": "ES256", "kid": key["kid"]}, body)
            assert await tenant_of(door, bearer(token)) == "UNAUTHENTICATED"
        for content in ("[" * 100_000, "[]", '{"keys": 5}', json.dumps({"keys": odd})):
            (tmp_path / "jwks.json").write_text(content)
            await asyncio.sleep(1.1)
            assert await tenant_of(door, bearer(keys.token())) == "team-a"  # the last good keys stay
    assert caplog.text.count("cannot be used") == 2 * len(odd)


async def test_a_token_is_good_no_longer_than_it_says_on_an_open_stream_too(tmp_path: Path) -> None:
    keys = Keys()
    async with listening(settings={"grpc": {"authentication": keys.write(tmp_path)}}) as door:
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
        (authority.issue(None, dns=["api.search.svc", "api"]), "api.search.svc"),
        (authority.issue(None, dns=[]), "UNAUTHENTICATED"),
        (authority.issue(" ", dns=["api.search.svc"]), "UNAUTHENTICATED"),
        (authority.issue("team\ta"), "UNAUTHENTICATED"),
    ):
        credentials = grpc.ssl_channel_credentials(authority.cert, pair.key, pair.cert)
        async with listening(settings=settings, credentials=credentials) as door:
            assert await tenant_of(door, tenant="forged") == tenant
