"""What a newcomer is shown of the questions."""

import io
import re

import numpy as np
from rich.console import Console

from loadtest.prometheus import BatchFigures, sums
from loadtest.sample import Passage, Sample, nearest, neighbours_table, passages_table
from loadtest.tally import Answer, Summary, Tally

EXPOSITION = """\
# HELP embed_batch_tokens tokens of a batch
# TYPE embed_batch_tokens histogram
embed_batch_tokens_bucket{replica="a:1",le="8.0"} 3.0
embed_batch_tokens_count{replica="a:1"} 3.0
embed_batch_tokens_sum{replica="a:1"} 30.0
embed_batch_tokens_count{replica="b:1"} 1.0
embed_batch_tokens_sum{replica="b:1"} 1e1
process_uptime_seconds 12.5
"""


def shown(thing: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def summary(answers: int, sent: int) -> Summary:
    tally = Tally(np.arange(sent))
    for number in range(sent):
        tally.record_sent(number, 0.0)
    for number in range(answers):
        tally.record_answer(number, Answer(0), 0.05)
    return tally.summary()


def test_samples_are_added_up_over_their_labels() -> None:
    totals = sums(EXPOSITION)
    assert totals["embed_batch_tokens_count"] == 4
    assert totals["embed_batch_tokens_sum"] == 40
    assert totals["process_uptime_seconds"] == 12.5
    assert totals["absent"] == 0


def test_batches_between_two_readings_have_means() -> None:
    between = BatchFigures(10, 1000, 9.0) - BatchFigures(6, 200, 5.0)
    assert between.tokens_per_batch == 200
    assert between.fill == 1.0
    assert BatchFigures(0, 0, 0).tokens_per_batch == 0
    assert BatchFigures(0, 0, 0).fill == 0


def test_each_row_is_shown_once_beside_its_nearest() -> None:
    embeddings = np.array([[1, 0], [1, 0.1], [0, 2], [0.3, 2], [-1, -1]], np.float32)
    found = nearest(embeddings, shown=2, neighbours=1)
    assert [(row, [place for place, _ in places]) for row, places in found] == [(0, [1]), (2, [3])]
    assert found[0][1][0][1] > 0.99


def test_the_tables_say_what_was_lost_and_what_is_near() -> None:
    embeddings = np.eye(3, 4, dtype=np.float32)
    embeddings[1] = embeddings[0]
    sample = Sample(
        ["who?", "who is it?", "where?"],
        (
            Passage("Kafka", summary(3, 3), BatchFigures(2, 30, 1.0)),
            Passage("gRPC", summary(2, 3), BatchFigures(3, 30, 0.75)),
        ),
        embeddings,
    )
    assert not sample.complete
    text = re.sub(r"[\s│]+", " ", shown(passages_table(sample)))
    for row in ("lost 0 1 ", "batches 2 3 ", "tokens per batch 15 10 ", "fill of the token budget 50% 25% "):
        assert row in text
    assert "who is it?" in shown(neighbours_table(sample.questions, embeddings))
