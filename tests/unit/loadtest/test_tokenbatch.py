"""The command line of `tokenbatch`."""

import subprocess

import pytest

from loadtest.tokenbatch import COMMANDS, main

NAMES = [command.name for command in COMMANDS]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_what_users_do_is_listed_in_the_order_of_their_first_day() -> None:
    assert [name for name in NAMES if name != "redrive"] == [
        "up", "produce", "embed", "rank", "plan", "check", "completion",
    ]  # fmt: skip


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
    assert "give documents" in capsys.readouterr().err
