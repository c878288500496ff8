"""Documents in the order in which they answer a query, by a cross-encoder or by vectors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import Pooled, PoolingAbilities
from chairlift.api.types import Pooling, PoolingTask, Request


def rerank_requests(
    query: str, documents: Sequence[str], abilities: PoolingAbilities, *, truncate_end: bool
) -> list[Request]:
    """Return the requests that rank documents: a pair for each, or vectors of query and documents.

    Raises:
        RequestError: The model is a classifier with several labels.
    """
    if len(abilities.labels) > 1:
        message = "this model has several labels: a reranker has one"
        raise RequestError(Reason.UNSUPPORTED, message, field="model")
    if abilities.labels:
        return [
            Request(
                query,
                pooling=Pooling(PoolingTask.CLASSIFY, text_pair=text, truncate_end=truncate_end),
            )
            for text in documents
        ]
    normalize = True if abilities.similarity == "cosine" else None
    first = Pooling(normalize=normalize, truncate_end=truncate_end, input_type="query")
    others = Pooling(normalize=normalize, truncate_end=truncate_end, input_type="document")
    return [Request(query, pooling=first), *(Request(text, pooling=others) for text in documents)]


def ranking(pooled: Sequence[Pooled], abilities: PoolingAbilities) -> list[tuple[int, float, int]]:
    """Return index, score and tokens of each document, the best first."""
    if abilities.labels:
        scores = [float(result.scores(is_multi_label=True)[0]) for result in pooled]
        counts = [result.num_tokens for result in pooled]
    else:
        query, *vectors = (result.vector().astype(np.float64) for result in pooled)
        scores = [_similarity(query, vector, abilities.similarity) for vector in vectors]
        counts = [result.num_tokens for result in pooled[1:]]
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return [(index, scores[index], counts[index]) for index in order]


def _similarity(query: NDArray[np.float64], vector: NDArray[np.float64], similarity: str) -> float:
    """Return how near two vectors are; distances count below 0. Cosines are of scaled vectors."""
    match similarity:
        case "euclidean":
            return -float(np.linalg.norm(query - vector))
        case "manhattan":
            return -float(np.abs(query - vector).sum())
        case _:
            return float(query @ vector)
