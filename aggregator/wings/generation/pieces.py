"""The piece of text of one generated token: its bytes, which may be a part of a character, and a name that shows it."""

from __future__ import annotations

import re

from tokenizers import AddedToken, Tokenizer

from aggregator.tokenizers.tokenizer import survives_panic

_BYTE = re.compile(r"^<0x([0-9A-F]{2})>$")
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that a byte-level tokenizer writes as the character of that number; the others follow from U+0100 (GPT-2)."""
_OTHERS = (byte for byte in range(0x100) if byte not in _PRINTABLE)
_BYTES_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + at): byte for at, byte in enumerate(_OTHERS)}


class Pieces:
    """The pieces of a tokenizer's vocabulary."""

    def __init__(self, reference: Tokenizer) -> None:
        self._reference = reference
        decoder = reference.decoder.__getstate__() if reference.decoder is not None else b""
        self._is_byte_level = b'"ByteLevel"' in decoder
        self._has_bytes = b'"ByteFallback"' in decoder
        self._added: dict[int, AddedToken] = reference.get_added_tokens_decoder()
        self._anchor = self._reference.encode_batch_fast(["a"], add_special_tokens=False)[0].ids
        self._anchored = self._reference.decode(self._anchor)

    @survives_panic
    def piece(self, token_id: int) -> tuple[str, bytes]:
        """Its name and its bytes; a special token has a name, and no bytes in a text."""
        added = self._added.get(token_id)
        if added is not None:
            return added.content, b"" if added.special else added.content.encode()
        piece = self._bytes(token_id)
        try:
            return piece.decode(), piece
        except UnicodeDecodeError:  # as OpenAI writes it
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece), piece

    def _bytes(self, token_id: int) -> bytes:
        token = self._reference.id_to_token(token_id) or ""
        if self._is_byte_level and all(character in _BYTES_OF for character in token):
            return bytes(_BYTES_OF[character] for character in token)
        if self._has_bytes and (byte := _BYTE.match(token)):
            return bytes.fromhex(byte[1])
        # A decoder drops a blank at the start of a text: the token is read behind another one.
        text = self._reference.decode([*self._anchor, token_id])
        return text.removeprefix(self._anchored).encode()
