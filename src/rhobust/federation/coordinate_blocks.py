"""Large vectors in blocks of coordinates, which bounds the memory that an aggregator needs.

Vectors are the rows of a matrix (K, P) with few rows and many columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_COLUMNS = 8192  # coordinates in a block, few enough for the processor's caches


def sorted_blocks(vectors: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The K values of each coordinate in increasing order, (C, K), and their weights, for C coordinates at a time.

    The weights are (C, K), or (1, K) if all are equal: then the order of the vectors does not matter.
    """
    light_first = weights.argsort(stable=True)  # equal values come in an order that does not depend on the workers'
    for columns in torch.split(vectors, _COLUMNS, dim=1):
        if bool((weights == weights[0]).all()):
            yield _sorted(columns.T.clone(memory_format=torch.contiguous_format)), weights[None]
        else:
            values, order = columns[light_first].T.contiguous().sort(dim=1, stable=True)
            yield values, weights[light_first][order]


def isometric(vectors: Tensor) -> Tensor:
    """K points of at most K coordinates, as far from each other and from 0 as the vectors are; in float64.

    vectors^T = Q R with orthonormal columns in Q, so the columns of R have the same distances. Unlike a Gram matrix, R
    keeps the digits of a small vector beside a large one: each of its columns is exact to rounding for its own size.
    """
    triangle = torch.empty(0, len(vectors), dtype=torch.float64, device=vectors.device)
    for columns in torch.split(vectors, _COLUMNS, dim=1):
        triangle = torch.linalg.qr(torch.cat([triangle, columns.T.double()]), mode="r").R
    return triangle.T.contiguous()


def _sorted(rows: Tensor) -> Tensor:
    """Each row in increasing order; the rows may be overwritten."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        rows.numpy().sort(axis=1)  # several times as fast as torch's
        return rows
    return rows.sort(dim=1).values
