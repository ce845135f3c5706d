"""`tokenbatch redrive` is the aggregator's command."""

import pytest

from loadtest.tokenbatch import main


def test_tokenbatch_redrive_has_the_options_of_the_wing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["redrive", "--help"])
    assert ended.value.code == 0
    assert "usage: tokenbatch redrive [-h] [--config FILE] [--bootstrap HOST:PORT]" in capsys.readouterr().out
