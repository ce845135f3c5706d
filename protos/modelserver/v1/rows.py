"""Rows of an answer that are no result, as both sides of the contract find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def broken_rows(matrix: npt.NDArray[np.floating[Any]], *, zeros: bool) -> npt.NDArray[np.bool_] | None:
    """Which rows of [rows, columns] are not finite or, unless `zeros` are results, all zero; None: no row.

    The sums of squares show that none is at a third of the cost, unless they overflow or underflow.
    """
    squares = np.einsum("ij,ij->i", matrix, matrix)
    if np.isfinite(squares).all() and (zeros or bool(squares.all())):
        return None
    broken = np.logical_not(np.isfinite(matrix).all(axis=1))
    if not zeros:
        broken |= ~matrix.any(axis=1)
    return broken if broken.any() else None
