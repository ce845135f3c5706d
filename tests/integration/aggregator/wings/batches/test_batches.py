"""OpenAI's client, unmodified, with files and batches of a real aggregator, Kafka and store."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from loadtest.stack.kafka import KafkaBroker
from tests.integration.aggregator.starts import aggregator, model, topics
from tests.integration.aggregator.wings.batches.conftest import URL, Office, Offices, client_of, lines

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_a_batch_answers_every_line_once(office: Office) -> None:
    batch = office.ended(office.begin(lines(1000, bad=lambda each: each % 100 == 7)))
    assert batch.status == "completed"
    output, errors = office.answered(batch)
    assert output == [f"line-{each}" for each in range(1000) if each % 100 != 7]
    assert errors == [f"line-{each}" for each in range(1000) if each % 100 == 7]
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (1000, 990, 10)


def test_a_line_is_answered_as_a_call_would_be(office: Office) -> None:
    batch = office.ended(office.begin(lines(3)))
    answered = office.written(batch.output_file_id)[1]["response"]
    called = office.client.embeddings.create(model="minilm", input="question 1", encoding_format="float")
    assert answered["status_code"] == 200
    assert answered["body"]["data"][0]["embedding"] == called.data[0].embedding
    assert answered["body"]["usage"] == {
        "prompt_tokens": called.usage.prompt_tokens,
        "total_tokens": called.usage.total_tokens,
    }


def test_files_are_listed_read_and_deleted(office: Office) -> None:
    data = lines(2)
    file = office.client.files.create(file=("mine.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(data), "mine.jsonl", "batch", "processed")
    assert office.client.files.retrieve(file.id) == file
    assert file.id in [each.id for each in office.client.files.list(limit=1)]  # page after page
    assert office.client.files.content(file.id).read() == data
    assert office.client.files.delete(file.id).deleted
    with pytest.raises(NotFoundError, match="there is no file"):
        office.client.files.content(file.id)


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"", "empty_file", None),
        (lines(1) + b"{no json\n", "invalid_json_line", 2),
        (lines(1) + lines(1), "duplicate_custom_id", 2),
        (lines(1).replace(b"/v1/embeddings", b"/v1/rerank"), "url_mismatch", 1),
        (lines(1) + lines(2, model="other").splitlines()[1], "model_mismatch", 2),
    ],
)
def test_a_bad_file_fails_with_its_code_and_line(office: Office, data: bytes, code: str, line: int | None) -> None:
    batch = office.ended(office.begin(data))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(each.code, each.line) for each in batch.errors.data] == [(code, line)]
    assert batch.output_file_id is None


def test_a_batch_of_bad_lines_completes_without_an_output(office: Office) -> None:
    batch = office.ended(office.begin(lines(3, bad=lambda _: True)))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    errors = office.written(batch.error_file_id)
    assert {each["response"]["status_code"] for each in errors} == {400}


def test_a_batch_past_its_window_has_expired(office: Office) -> None:
    batch = office.ended(office.begin(lines(300), window="1s"))
    assert batch.status in ("completed", "expired")  # by what the engine had done then
    output, errors = office.answered(batch)
    assert sorted(output + errors) == sorted(f"line-{each}" for each in range(300))
    codes = {each["error"]["code"] for each in office.written(batch.error_file_id)}
    assert codes == ({"batch_expired"} if batch.status == "expired" else set())


def test_ids_of_another_tenant_find_nothing(office: Office, offices: Offices) -> None:
    del offices
    batch = office.ended(office.begin(lines(2)))
    other = office.client.with_options(default_headers={"x-tenant": "someone"})
    assert batch.output_file_id is not None
    for file_id in (batch.input_file_id, batch.output_file_id):
        with pytest.raises(NotFoundError):
            other.files.retrieve(file_id)
        with pytest.raises(NotFoundError):
            other.files.content(file_id)
        with pytest.raises(NotFoundError):
            other.files.delete(file_id)
    with pytest.raises(NotFoundError):
        other.batches.retrieve(batch.id)
    with pytest.raises(NotFoundError):
        other.batches.cancel(batch.id)
    with pytest.raises(NotFoundError):
        other.batches.create(input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h")
    assert batch.id not in [each.id for each in other.batches.list()]


def test_lines_of_voyage_take_what_their_batch_says(office: Office) -> None:
    data = b'{"custom_id": "a", "body": {"input": "x"}}\n{"custom_id": "b", "body": {"input": ["y", "z"]}}\n'
    file = office.client.files.create(file=("v.jsonl", data), purpose="batch")
    params = {"model": "minilm", "input_type": "document"}
    batch = office.client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", extra_body={"request_params": params}
    )
    batch = office.ended(batch)
    assert [len(each["response"]["body"]["data"]) for each in office.written(batch.output_file_id)] == [1, 2]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"extra_body": {"requests": [{}]}}, "upload them as a file"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(office: Office, asked: dict[str, Any], named: str) -> None:
    file = office.client.files.create(file=("a.jsonl", lines(1)), purpose="batch")
    told: dict[str, Any] = {"input_file_id": file.id, "endpoint": URL, "completion_window": "24h", **asked}
    with pytest.raises(BadRequestError, match=named):
        office.client.batches.create(**told)


def test_files_of_other_purposes_are_refused(office: Office) -> None:
    before = len([*office.client.files.list()])
    with pytest.raises(BadRequestError, match="files are for batches alone"):
        office.client.files.create(file=("a.jsonl", lines(1)), purpose="assistants")
    assert len([*office.client.files.list()]) == before


def test_uploads_in_parts_are_refused_by_name(office: Office) -> None:
    with pytest.raises(NotFoundError, match="uploads in parts are not taken"):
        office.client.uploads.create(bytes=1, filename="a", mime_type="a/b", purpose="batch")


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data; boundary=x", b"no form", 400),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--',
            400,
        ),
    ],
)
def test_a_body_that_is_no_form_is_refused(office: Office, content_type: str, body: bytes, status: int) -> None:
    with closing(http.client.HTTPConnection(office.client.base_url.netloc.decode())) as connection:
        connection.request("POST", "/v1/files", body, {"content-type": content_type})
        response = connection.getresponse()
        answer = json.loads(response.read())
    assert (response.status, bool(answer["error"]["message"])) == (status, True)


def test_a_cancelled_batch_ends_within_ten_seconds(offices: Offices) -> None:
    slow = offices.start({"BATCHING__MAX_HELD_TOKENS": "400"})
    office = Office(client_of(slow.http_address))
    batch = office.begin(lines(20_000))
    office.until(batch, lambda batch: batch.status == "in_progress")
    office.client.batches.cancel(batch.id)
    batch = office.ended(batch, 20.0)  # ten, and what this machine has to do besides
    assert batch.status == "cancelled"
    output, errors = office.answered(batch)
    assert sorted(output + errors) == sorted(f"line-{each}" for each in range(20_000))
    assert {each["error"]["code"] for each in office.written(batch.error_file_id)} == {"batch_cancelled"}


def test_without_a_store_neither_route_is_there(offices: Offices) -> None:
    plain: OpenAI = client_of(offices.start({"BATCHES__STORE": ""}).http_address)
    with pytest.raises(NotFoundError, match="there is no GET"):
        plain.files.list()


def test_check_looks_at_the_topic_of_chunks(kafka: KafkaBroker, offices: Offices) -> None:
    told = {
        **topics("checked.batches", create=True),
        "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "MODELS": model(offices.server.address),
        "HTTP__BIND": "127.0.0.1:0",
        "BATCHES__STORE": f"file://{offices.store}",
    }
    ended = aggregator("--check", **told, BATCHES__TOPIC="unmade.chunks")
    assert ended.returncode == 0, ended.stdout
    assert "topic unmade.chunks is not there yet, and will be created" in ended.stdout
    ended = aggregator("--check", **told, BATCHES__TOPIC="checked.batches.requests")
    assert "batches.topic checked.batches.requests is a topic of requests or replies" in ended.stdout
    ended = aggregator("--check", **told | {"KAFKA__CREATE_TOPICS": "false"}, BATCHES__TOPIC="unmade.chunks")
    assert "kafka: topic unmade.chunks is missing" in ended.stdout
