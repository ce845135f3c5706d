"""What texts need of a tokenizer beside ids: the chat template in its folder, and the pieces of its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from aggregator.tokenizers.tokenizer import Detokenizer, Tokenizer
from aggregator.wings.generation.chat_template import ChatTemplate
from aggregator.wings.generation.pieces import Pieces
from protos.generation.v1.generation_pb2 import Message

_templates: WeakKeyDictionary[Tokenizer, ChatTemplate] = WeakKeyDictionary()
_pieces: WeakKeyDictionary[Tokenizer, Pieces] = WeakKeyDictionary()


def template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """Raises OSError or ValueError for a file that is no template."""
    template = _templates.get(tokenizer)
    if template is None:
        template = _templates[tokenizer] = ChatTemplate(tokenizer.folder)
    return template


def prompt_of(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """A chat as the model's own template formats it. Raises InvalidRequest."""
    return template_of(tokenizer).prompt(messages)


class Spelling:
    """How a model's tokens are written."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def piece(self, token_id: int) -> tuple[str, bytes]:
        """A token's name, and the bytes that it adds to a text: perhaps a part of a character."""
        pieces = _pieces.get(self._tokenizer)
        if pieces is None:
            pieces = _pieces[self._tokenizer] = Pieces(self._tokenizer.reference)
        return pieces.piece(token_id)

    def detokenizer(self, prompt_ids: bytes) -> Detokenizer:
        """The detokenizer of the text after these ids, int32 little endian."""
        return self._tokenizer.detokenizer(prompt_ids)
