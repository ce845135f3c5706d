"""What every query must come back as: the synthetic engine's vector of its tokens, computed here a second time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from aggregator.tokenizers.tokenizer import TOKENIZER_FILE
from loadtest.stack.instant_modelserver import tokenizer_folder
from modelserver.engines.synthetic import vectors

DIMENSIONS = 64
LEAST_COSINE = 0.9999
Row = npt.NDArray[np.float32]


class Oracle:
    """Knows the vector of every text; each is computed once."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self._dimensions = dimensions
        self._tokenizer = Tokenizer.from_file(str(tokenizer_folder() / TOKENIZER_FILE))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._known: dict[str, Row] = {}

    def agrees(self, text: str, embedding: bytes) -> bool:
        """Whether float32 bytes, little endian, are this text's vector: cosine of at least 0.9999."""
        found = np.frombuffer(embedding, "<f4")
        if found.size != self._dimensions:
            return False
        length = float(np.linalg.norm(found))
        return length > 0 and float(found @ self._vector(text)) / length >= LEAST_COSINE

    def _vector(self, text: str) -> Row:
        """The text's vector, of length 1; float32 [dimensions]."""
        known = self._known.get(text)
        if known is None:
            ids = np.array(self._tokenizer.encode(text).ids, np.int32)
            row = vectors(ids, np.array([ids.size]), self._dimensions)[0]
            known = self._known[text] = row / np.linalg.norm(row)
        return known
