from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.tokenizers.cache import TokenizerCache, TokenizerMismatch, tokenizer_fingerprint
from tests.support.fake_tokenizer import wordpiece_files

FILES = wordpiece_files()
FINGERPRINT = tokenizer_fingerprint(FILES)


def test_what_was_put_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    assert TokenizerCache(tmp_path).get(FINGERPRINT) is None
    TokenizerCache(tmp_path).put(FINGERPRINT, FILES)
    found = TokenizerCache(tmp_path).get(FINGERPRINT)
    assert found is not None
    assert found.count(["hello"]).lengths.tolist() == [3]


def test_damaged_files_are_not_used_and_are_replaced(tmp_path: Path) -> None:
    TokenizerCache(tmp_path).put(FINGERPRINT, FILES)
    (tmp_path / FINGERPRINT / "tokenizer.json").write_bytes(b"{")
    assert TokenizerCache(tmp_path).get(FINGERPRINT) is None
    TokenizerCache(tmp_path).put(FINGERPRINT, FILES)
    assert TokenizerCache(tmp_path).get(FINGERPRINT) is not None


def test_files_of_another_fingerprint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerMismatch, match=f"fingerprint is {FINGERPRINT}, not {'0' * 64}"):
        TokenizerCache(tmp_path).put("0" * 64, FILES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", "..", "", "a\\b", "a\0b", ".hidden"])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    files = {**FILES, name: b"x"}
    with pytest.raises(TokenizerMismatch, match="not a plain file name"):
        TokenizerCache(tmp_path).put(tokenizer_fingerprint(files), files)


def test_files_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": b"{}"}
    with pytest.raises(TokenizerMismatch, match=r"no tokenizer\.json"):
        TokenizerCache(tmp_path).put(tokenizer_fingerprint(files), files)


def test_a_folder_that_cannot_be_written_costs_the_cache_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    tokenizer = TokenizerCache(blocked).put(FINGERPRINT, FILES)
    assert tokenizer.count(["hello"]).lengths.tolist() == [3]
