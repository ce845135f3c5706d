"""A load of one's own becomes pods over time, beside other ways of batching, and values for the chart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from loadtest.__main__ import main
from loadtest.plan.arrivals_file import read
from loadtest.plan.chart import scaling
from loadtest.plan.command import aggregators_a_gpu

HEADS = {
    "time,tokens\n": ["0,3", "0.5,12", "2,60"],
    "Timestamp,ContextTokens,GeneratedTokens\n": [
        "2023-11-16 18:17:03.5000000,3,9",
        "2023-11-16 18:17:04.0000000,12,9",
        "2023-11-16 18:17:05.5000000,60,9",
    ],
    "ts,length\n": ["1700000000,12", "1700000000.5,48", "1700000002,240"],
    "text,time\n": [
        f"{'a' * 12},2023-11-16T18:17:03Z",
        f"{'b' * 48},2023-11-16T19:17:03.5+01:00",
        f"{'c' * 240},2023-11-16T18:17:05",
    ],
}


@pytest.mark.parametrize("head", HEADS)
def test_times_and_lengths_are_read_by_the_names_of_their_columns(tmp_path: Path, head: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(head + "\n".join(reversed(HEADS[head])) + "\n")
    found = read(file, tokens=7)
    assert found.times_s.tolist() == pytest.approx([0.0, 0.5, 2.0])
    assert (found.tokens.tolist(), found.guessed, found.duration_s) == ([3, 12, 60], False, 2.0)


def test_an_access_log_tells_times_and_no_lengths(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    lines = [f'10.0.0.1 - - [16/Nov/2023:18:17:0{second} +0000] "POST /embed HTTP/1.1" 200 9' for second in (3, 5)]
    file.write_text("\n".join([lines[0], lines[1], "something else"]) + "\n")
    found = read(file, tokens=7)
    assert (found.times_s.tolist(), found.tokens.tolist(), found.guessed) == ([0.0, 2.0], [7, 7], True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a,b\n1,2\n3,4\n", "no column of times"),
        ("time,tokens\n1,2\n", "fewer than two"),
        ("time,tokens\n1,2\nnoon,3\n", "line 3"),
        ("time,tokens\n1,2\n2,many\n", "line 3"),
        ("", "no column of times"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_what_is_wrong(
    tmp_path: Path, content: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        read(file, tokens=7)
    assert main(["plan", "--arrivals", str(file), "--profile", "a100-like"]) == 2
    assert "python -m loadtest plan: " in capsys.readouterr().err


def test_pods_are_scaled_as_the_chart_says_under_ones_own_values(tmp_path: Path) -> None:
    plain = scaling(None, 60.0)
    assert (plain.start_s, plain.demand.drain_s) == (60.0, 30.0)
    hpa = plain.hpa
    assert (hpa.min_replicas, hpa.max_replicas, hpa.up_pods, hpa.up_share, hpa.policy_period_s) == (1, 8, 2, 0.5, 60)
    assert (hpa.down_pods, hpa.down_share, hpa.down_period_s, hpa.down_window_s) == (1, 0.0, 120, 300)
    mine = tmp_path / "values.yaml"
    mine.write_text(
        yaml.safe_dump(
            {
                "modelServer": {"autoscaling": {"maxReplicas": 40}},
                "scaler": {"config": {"policy": {"drain_s": 10.0}}},
            }
        )
    )
    changed = scaling(mine, 60.0)
    assert (changed.hpa.min_replicas, changed.hpa.max_replicas, changed.demand.drain_s) == (1, 40, 10.0)


def rising(file: Path) -> Path:
    """Half a minute of 40 queries a second, then as long 400."""
    times = [number / 40 for number in range(30 * 40)] + [30 + number / 400 for number in range(30 * 400)]
    file.write_text("time,tokens\n" + "".join(f"{time:.4f},12\n" for time in times))
    return file


@pytest.mark.slow
def test_a_load_that_outgrows_its_pods_is_shown_what_more_of_them_buy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrivals, plot = rising(tmp_path / "arrivals.csv"), tmp_path / "plan.svg"
    given = ["--arrivals", str(arrivals), "--profile", "minilm-cpu", "--slo", "300ms", "--cost-per-hour", "2"]
    assert main(["plan", *given, "--start-s", "20", "--plot", str(plot)]) == 0
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines() if line.startswith("tokenbatch")]
    shares = [float(next(word for word in row if word.endswith("%")).rstrip("%")) for row in rows]
    assert rows[0][1:4] == ["1", "to", "8"]
    assert max(shares) > shares[0]
    assert "Pods start in 20 s" in told
    values = yaml.safe_load(told[told.index("modelServer:") :])
    best = shares.index(max(shares))
    assert values["modelServer"]["autoscaling"]["minReplicas"] == int(rows[best][1])
    assert values["aggregator"]["config"]["sla"]["latency_s"] == 0.3
    assert re.search(r"Aggregators need 0\.1\d of a core at the peak of 4\d\d queries a second by grpc", told)
    assert values["aggregator"]["autoscaling"]["maxReplicas"] == 2
    for name in ("32 requests or 10 ms", "one by one"):
        assert name in told
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(("door", "count"), [("grpc", 124), ("http", 77), ("lists", 57), ("kafka", 13)])
def test_aggregators_a_gpu_follow_its_speed_and_how_questions_come(door: str, count: int) -> None:
    assert aggregators_a_gpu(2_440_000, 12.0, door) == count, "MiniLM on an H200"
    assert aggregators_a_gpu(4_700, 12.0, door) == 1, "and on two cores"


def test_a_load_that_one_pod_bears_is_left_at_the_charts_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text("time,text\n" + "".join(f"{number},how deep is the sea\n" for number in range(60)))
    assert main(["plan", "--arrivals", str(file), "--profile", "a100-like", "--plot", str(tmp_path / "p.svg")]) == 0
    told = capsys.readouterr().out
    assert "100.0%" in told
    assert "buys" not in told
    assert "Pods start" not in told
