"""The command line of `tokenbatch`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.kit.grpc import GrpcRunError
from loadtest.kit.tally import Answer, Tally
from loadtest.tokenbatch import COMMANDS, main

NAMES = [command.name for command in COMMANDS]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_what_users_do_is_listed_in_the_order_of_their_first_day() -> None:
    assert [(command.name, command.module) for command in COMMANDS] == [
        ("up", "loadtest.up.command"),
        ("produce", "loadtest.produce"),
        ("embed", "loadtest.embed"),
        ("rank", "loadtest.rank"),
        ("plan", "loadtest.plan.command"),
        ("check", "loadtest.check"),
        ("redrive", "loadtest.redrive"),
        ("completion", "loadtest.completion"),
    ]


@pytest.mark.parametrize("command", [name for name in NAMES if name != "redrive"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: tokenbatch {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["em"], ["embed"]),
        (["embed", "--conc"], ["--concurrency"]),
        (["embed", "--priority", "back"], ["background"]),
        (["check", "model"], ["modelserver"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    words: list[str], completed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"COMP_WORDS=(tokenbatch {' '.join(words)}); COMP_CWORD={len(words)}"
    completion = printed(capsys, "completion", "bash")
    script = f'{completion}\n{line}; _shtab_tokenbatch; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed


def test_zsh_gets_every_command_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(capsys, "completion", "zsh")
    assert script.startswith("#compdef tokenbatch")
    assert all(f"{name}:" in script for name in NAMES)


@pytest.mark.parametrize("process", ["aggregator", "modelserver"])
def test_check_is_that_of_the_process_with_its_options(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def begun(arguments: list[str]) -> int:
        calls.append(arguments)
        return 3

    monkeypatch.setattr(f"{process}.__main__.main", begun)
    assert main(["check", process, "--config", "here.yaml", "--show-settings"]) == 3
    assert calls == [["--check", "--config", "here.yaml", "--show-settings"]]


def test_rank_wants_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", "who wrote hamlet"]) == 2
    assert capsys.readouterr().err.startswith("tokenbatch rank: give documents")


@pytest.mark.parametrize("command", [["embed"], ["produce"], ["rank", "q"]])
def test_a_file_that_is_not_utf_8_is_named_with_its_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(b"fine\nna\xefve\n")
    assert main([*command, "--file", str(file)]) == 2
    said = capsys.readouterr().err
    assert said == f"tokenbatch {command[0]}: {file}, line 2: not UTF-8 (invalid continuation byte)\n"


@pytest.mark.parametrize("command", ["embed", "produce"])
@pytest.mark.parametrize("option", ["--out", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr("loadtest.kit.grpc.run", asked)
    monkeypatch.setattr("loadtest.kit.kafka.run", asked)
    file = tmp_path / "absent" / "replies"
    assert main([command, option, str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tokenbatch {command}: ")
    assert str(file) in said


def test_trying_a_file_leaves_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, absent = tmp_path / "before.json", tmp_path / "absent.json"
    before.write_text("kept")

    async def run(*_: object) -> None:
        assert before.read_text() == "kept"
        assert not absent.exists()
        raise GrpcRunError("as the test wants it")

    monkeypatch.setattr("loadtest.kit.grpc.run", run)
    for file in (before, absent):
        assert main(["embed", "--target", "here:1", "--json", str(file)]) == 2
    assert before.read_text() == "kept"
    assert not absent.exists()


@pytest.mark.parametrize(
    ("codes", "exits"), [([0, 0], 0), ([0, 5], 1), ([5, 5], 1), ([0], 1)], ids=["all", "one failed", "none", "one lost"]
)
@pytest.mark.parametrize("command", ["embed", "produce"])
def test_the_exit_code_says_whether_every_query_has_its_vector(
    command: str, codes: list[int], exits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_texts: object, tally: Tally, *_: object) -> None:
        tally.record_sent(range(2), 1.0)
        tally.record_answers(range(2), [Answer(code) for code in codes], 2.0)

    monkeypatch.setattr("loadtest.kit.grpc.run", run)
    monkeypatch.setattr("loadtest.kit.kafka.run", run)
    (tmp_path / "two").write_text("a\nb\n")
    assert main([command, "--file", str(tmp_path / "two")]) == exits


def test_completion_is_quiet_when_its_reader_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["completion", "bash"]) == 0
        gone.flush()  # as the interpreter does at its end
