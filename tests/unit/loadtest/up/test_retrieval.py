"""The retrieval loop's runs: the two kinds of servers take turns, and the table shows their spread."""

import io

from rich.console import Console

from loadtest.up.retrieval import Loop, Retrieval, Run, Service, runs_table, turns

MIXED, SPLIT = Service("one mixed server", "a:1", "m", "m"), Service("a split pair", "b:1", "e", "g")


def ran(servers: str, seconds: float) -> Run:
    loop = Loop("who wrote hamlet", (), "when", seconds / 2)
    return Run(servers, [Retrieval((loop, loop), seconds)] * 6, seconds)


def test_each_side_is_once_first_and_once_last() -> None:
    assert turns(MIXED, SPLIT) == [MIXED, SPLIT, SPLIT, MIXED]


def test_the_table_shows_how_far_runs_of_the_same_servers_differ() -> None:
    output = io.StringIO()
    runs = [
        ran("one mixed server", 2.0),
        ran("a split pair", 4.0),
        ran("a split pair", 3.0),
        ran("one mixed server", 4.0),
    ]
    Console(file=output, width=120).print(runs_table(runs))
    words = output.getvalue().replace("│", " ").split()
    row = " ".join(words)
    assert "one mixed server 4.5 3.0 to 6.0 3.0 s 4.0 s" in row
    assert "a split pair 3.5 3.0 to 4.0 3.5 s 4.0 s" in row
