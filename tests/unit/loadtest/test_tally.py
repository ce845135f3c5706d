"""A tally accounts for every query: answered, failed, lost, answered twice."""

from pathlib import Path

import numpy as np
import pytest

from loadtest.kit.tally import Answer, Tally


def tally(count: int) -> Tally:
    return Tally(np.arange(count, dtype=np.int64))


def vector(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_each_query_is_counted_once_and_what_comes_again_is_a_duplicate() -> None:
    run = tally(3)
    for number in range(3):
        run.record_sent(range(number, number + 1), now_s=1.0)
    run.record_answer(0, Answer(0, vector(1, 0), 5), now_s=1.5)
    run.record_answer(0, Answer(0, vector(9, 9), 5), now_s=1.6)
    run.record_answer(2, Answer(4), now_s=3.0)

    summary = run.summary()
    assert (summary.sent, summary.replies, summary.lost, summary.duplicates) == (3, 2, 1, 1)
    assert summary.errors == {"DEADLINE_EXCEEDED": 1}
    assert summary.tokens == 5
    assert summary.duration_s == 2.0
    assert summary.queries_per_s == 1.0
    assert summary.latency_s["p50"] == pytest.approx(1.25)
    assert not run.complete


def test_the_arrays_hold_one_row_for_each_query_answered(tmp_path: Path) -> None:
    run = Tally(np.array([0, 1, 0], np.int64))
    for number in range(3):
        run.record_sent(range(number, number + 1), now_s=0.0)
    run.record_answer(2, Answer(0, vector(3, 4), 2), now_s=0.25)
    run.record_answer(1, Answer(3), now_s=0.5)
    run.write_npz(tmp_path / "replies.npz")

    with np.load(tmp_path / "replies.npz") as replies:
        assert replies["line"].tolist() == [1, 0]
        assert replies["line"].dtype == np.int64
        assert replies["code"].tolist() == [3, 0]
        assert replies["embedding"].tolist() == [[0, 0], [3, 4]]
        assert replies["embedding"].dtype == np.float32
        assert replies["latency_s"].tolist() == [0.5, 0.25]
        assert replies["latency_s"].dtype == np.float64
