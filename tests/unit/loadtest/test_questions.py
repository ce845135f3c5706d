"""Lines are sent as they stand in the file."""

from pathlib import Path

import pytest

from loadtest.questions import bundled_questions, read_lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("a\x0cb\u2028c\n", ["a\x0cb\u2028c"]),
        ("", []),
    ],
)
def test_only_line_feeds_end_a_line(tmp_path: Path, content: str, lines: list[str]) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(content, encoding="utf-8", newline="")
    assert read_lines(file) == lines


def test_the_bundled_questions_are_read_when_no_file_is_given() -> None:
    questions = read_lines(None)
    assert questions == bundled_questions()
    assert len(questions) == 3610
    assert questions[0] == "when was the last time anyone was on the moon"
