from __future__ import annotations

import hashlib

from protos.modelserver.v1.fingerprint import tokenizer_fingerprint


def test_the_fingerprint_is_the_digest_of_names_sizes_and_contents() -> None:
    expected = hashlib.sha256(b"a.json\0002\000{}tokenizer.json\0003\000abc").hexdigest()
    assert tokenizer_fingerprint({"tokenizer.json": b"abc", "a.json": b"{}"}) == expected


def test_the_order_in_which_files_arrive_does_not_matter() -> None:
    files = {"a": b"1", "b": b"2"}
    assert tokenizer_fingerprint(files) == tokenizer_fingerprint(dict(reversed(files.items())))


def test_content_that_moves_to_another_file_changes_the_fingerprint() -> None:
    assert tokenizer_fingerprint({"a": b"12", "b": b""}) != tokenizer_fingerprint({"a": b"1", "b": b"2"})
    assert tokenizer_fingerprint({"a": b"1"}) != tokenizer_fingerprint({"b": b"1"})
