"""A batch of questions by OpenAI's Batch API: upload a file, wait for its end with a bar, and say what it cost."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from loadtest.kit.prometheus import totals
from loadtest.screen import bars, duration, plain_table
from loadtest.stack.errors import StackError

_URL = "/v1/embeddings"
_BOUNDARY = "a-line-that-no-question-has"
_TIMEOUT_S = 60.0
_LOOK_S = 0.2
_FINAL = ("completed", "failed", "expired", "cancelled")
_ENGINE = "tokenbatch_engine_seconds_total"


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch that ended. `ids`: the custom ids in both files; `engine_s`: the time of engine steps that fell to it."""

    questions: int
    completed: int
    failed: int
    ids: tuple[str, ...]
    tokens: int
    seconds: float
    engine_s: float

    @property
    def is_whole(self) -> bool:
        """Whether each question has its vector, and is there once."""
        return self.completed == self.questions == len(set(self.ids)) == len(self.ids)


def run_batch(http: str, metrics: str, questions: Sequence[str]) -> BatchRun:
    """The questions as a batch of the aggregator at `http` (host:port). Raises StackError when a call fails."""
    lines = [
        json.dumps({"custom_id": f"question-{place}", "method": "POST", "url": _URL, "body": _body(question)})
        for place, question in enumerate(questions)
    ]
    engine_s, began_s = totals(metrics)[_ENGINE], time.monotonic()
    file = _call(http, "POST", "/v1/files", _form("\n".join(lines)), f"multipart/form-data; boundary={_BOUNDARY}")
    asked = json.dumps({"input_file_id": file["id"], "endpoint": _URL, "completion_window": "1h"}).encode()
    batch = _call(http, "POST", "/v1/batches", asked)
    with bars() as progress:
        bar = progress.add_task("batch", total=len(questions))
        while batch["status"] not in _FINAL:
            time.sleep(_LOOK_S)
            batch = _call(http, "GET", f"/v1/batches/{batch['id']}")
            counts = batch["request_counts"]
            progress.update(bar, completed=counts["completed"] + counts["failed"])
    seconds = time.monotonic() - began_s
    files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
    ids = [json.loads(line)["custom_id"] for each in files for line in _lines(http, each)]
    return BatchRun(
        len(questions),
        batch["request_counts"]["completed"],
        batch["request_counts"]["failed"],
        tuple(ids),
        batch["usage"]["total_tokens"],
        seconds,
        totals(metrics)[_ENGINE] - engine_s,
    )


def _body(question: str) -> dict[str, str]:
    return {"input": question, "encoding_format": "base64"}


def _form(data: str) -> bytes:
    part = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{{}}"\r\n\r\n'
    file = part.replace('"\r\n\r\n', '"; filename="questions.jsonl"\r\n\r\n')
    return f"{part.format('purpose')}batch\r\n{file.format('file')}{data}\r\n--{_BOUNDARY}--\r\n".encode()


def _call(http: str, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
    return json.loads(_answer(http, method, path, body, kind))


def _lines(http: str, file_id: str) -> list[bytes]:
    return _answer(http, "GET", f"/v1/files/{file_id}/content").splitlines()


def _answer(http: str, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    request = urllib.request.Request(f"http://{http}{path}", body, {"content-type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - this machine's
            data: bytes = response.read()
    except urllib.error.HTTPError as error:
        raise StackError(f"{method} {path} failed: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        raise StackError(f"{method} {path} failed: {error}") from error
    return data


def cost_table(run: BatchRun) -> Table:
    """What it did, and what it cost."""
    table = plain_table("questions", "with a vector", "failed", "tokens", "took", "engine time", "per 1,000", names=0)
    per_thousand_s = 1000 * run.engine_s / run.questions
    table.add_row(
        f"{run.questions:,}",
        f"{run.completed:,}",
        f"{run.failed:,}",
        f"{run.tokens:,}",
        duration(run.seconds),
        duration(run.engine_s),
        duration(per_thousand_s),
    )
    return table
