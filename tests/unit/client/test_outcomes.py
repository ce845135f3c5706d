"""The client package's answers, errors and attempts."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from tokenbatch_client import (
    Client,
    CredentialError,
    InputError,
    Overloaded,
    ServerError,
    TokenbatchError,
    Unavailable,
    results,
)
from tokenbatch_client.connection import Attempts, Connection
from tokenbatch_client.errors import of_call
from tokenbatch_client.protos import status_pb2
from tokenbatch_client.protos.embedding.v1 import embedding_pb2 as pb
from tokenbatch_client.requests import Exchange


class Failed(grpc.RpcError):
    """A call that ended with this code, and a RetryInfo where it has a delay."""

    def __init__(self, code: grpc.StatusCode, delay_s: int | None = None) -> None:
        super().__init__()
        self._code = code
        self._trailers: list[tuple[str, Any]] = [("x", "y")]
        if delay_s is not None:
            info = status_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=delay_s))
            detail = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info.SerializeToString())
            details = status_pb2.RpcStatus(details=[detail]).SerializeToString()
            self._trailers.append(("grpc-status-details-bin", details))

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "as the test wants it"

    def trailing_metadata(self) -> Any:
        return self._trailers


@pytest.mark.parametrize(
    ("code", "delay_s", "kind", "waits_s"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, Unavailable, 0.1),
        (grpc.StatusCode.CANCELLED, None, Unavailable, 0.1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2, Overloaded, 2.0),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, Overloaded, None),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 20, Overloaded, None),  # longer than is left
        (grpc.StatusCode.INTERNAL, None, ServerError, None),
        (grpc.StatusCode.ABORTED, None, TokenbatchError, None),
    ],
)
def test_a_call_is_tried_again_where_the_service_says_that_it_helps(
    code: grpc.StatusCode, delay_s: int | None, kind: type[TokenbatchError], waits_s: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tokenbatch_client.connection.time.monotonic", lambda: 100.0)
    failed = Failed(code, delay_s)
    assert type(of_call(failed)) is kind
    if waits_s is None:
        with pytest.raises(kind):
            Attempts(110.0, retry=True).delay_s(failed)
    else:
        assert Attempts(110.0, retry=True).delay_s(failed) == waits_s
    with pytest.raises(kind):
        Attempts(110.0, retry=False).delay_s(failed)


def test_a_service_that_cannot_be_reached_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenbatch_client.connection.time.monotonic", lambda: 100.0)
    attempts, failed = Attempts(110.0, retry=True), Failed(grpc.StatusCode.UNAVAILABLE)
    assert [attempts.delay_s(failed) for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_answer_with_more_or_fewer_rows_than_inputs_is_refused(rows: int) -> None:
    response = pb.EmbedResponse(embeddings=[pb.Embedding(embedding=bytes(8))] * rows)
    with pytest.raises(TokenbatchError, match=f"2 inputs were sent, and {rows} rows came"):
        results.embeddings(response, 2, "return")


def test_a_stream_that_ends_before_its_answers_says_so() -> None:
    exchange = Exchange(2, {})
    assert len(list(exchange.requests(["a", "b", "c"]))) == 2
    assert exchange.place(pb.EmbedResponse(request_id="2")) == (1, 2)
    for other in ("2", "7", ""):
        with pytest.raises(TokenbatchError, match=f"names request '{other}', which waits for none"):
            exchange.place(pb.EmbedResponse(request_id=other))
    with pytest.raises(Unavailable, match="2 inputs have no row") as ended:
        exchange.end()
    assert ended.value.retryable
    assert exchange.place(pb.EmbedResponse(request_id="0")) == (2, 0)
    exchange.end()


def test_a_token_goes_with_every_call() -> None:
    assert Connection("here:1", token="t-1").metadata == [("authorization", "Bearer t-1")]
    assert Connection("here:1").metadata == []


def test_whitespace_around_a_token_is_not_sent() -> None:
    assert Connection("here:1", token=" t-1\r\n").metadata == [("authorization", "Bearer t-1")]


def test_none_is_no_token() -> None:
    assert Connection("here:1", token=None).metadata == []


class Kind:
    """What opens channels, in place of grpc."""

    def insecure_channel(self, *_: object, **__: object) -> str:
        return "in the clear"

    def secure_channel(self, *_: object, **__: object) -> str:
        return "by TLS"


@pytest.mark.parametrize("given", ["tls", "ca", "own"])
def test_whatever_is_given_for_tls_means_tls(given: str, tmp_path: Path) -> None:
    (tmp_path / "pem").touch()
    file = str(tmp_path / "pem")
    arguments: dict[str, dict[str, Any]] = {
        "tls": {"tls": True},
        "ca": {"ca_file": file},
        "own": {"cert_file": file, "key_file": file},
    }
    assert Connection("here:1", **arguments[given]).open(Kind()) == "by TLS"
    assert Connection("here:1").open(Kind()) == "in the clear"


@pytest.mark.parametrize("alone", ["cert_file", "key_file"])
def test_a_certificate_without_its_key_is_refused(alone: str) -> None:
    arguments: dict[str, Any] = {alone: "file"}
    with pytest.raises(InputError, match="one is missing: mTLS needs both"):
        Connection("here:1", **arguments).open(Kind())


@pytest.mark.parametrize("token", ["t\n1", "t\0", "tökén", b"t-1", 7, True, b"", 0, ["t"]])
def test_a_token_that_no_header_holds_is_refused_before_anything_is_sent(token: Any) -> None:
    with pytest.raises(CredentialError, match="printable ASCII"):
        Client("here:1", token=token)


def test_a_deadline_is_above_zero_and_a_year_away_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenbatch_client.connection.time.monotonic", lambda: 100.0)
    connection = Connection("here:1")
    assert connection.attempts(2.5).deadline_s == 102.5
    assert connection.attempts(float("inf")).deadline_s == connection.attempts(1e12).deadline_s == 100 + 365 * 86400
    for wrong in (0, -1.0, float("nan"), "10"):
        with pytest.raises(InputError, match="timeout_s is "):
            connection.attempts(wrong)  # type: ignore[arg-type] # on purpose


def test_a_row_has_its_vector_or_the_error_that_names_its_input() -> None:
    wrong = pb.Status(code=3, message="it is empty")
    response = pb.EmbedResponse(
        embeddings=[pb.Embedding(embedding=b"\0\0\x80?", token_count=3), pb.Embedding(status=wrong)]
    )
    found = results.embeddings(response, 2, "return")
    assert found.rows[0].vector().tolist() == [1.0]
    assert "input 1: it is empty (INVALID_ARGUMENT)" in str(found.rows[1].error)
    with pytest.raises(TokenbatchError, match="input 1"):
        results.embeddings(response, 2, "raise")


def test_a_request_that_failed_as_a_whole_fails_each_of_its_inputs() -> None:
    response = pb.EmbedResponse(status=pb.Status(code=8, message="full", retryable=True))
    rows = list(results.rows(response, 2, first=10))
    assert [(row.index, row.error is not None and row.error.code) for row in rows] == [
        (10, "RESOURCE_EXHAUSTED"),
        (11, "RESOURCE_EXHAUSTED"),
    ]
