"""Requests that run beside each other, with a bounded number in flight."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor


def map_in_flight[A, R](operation: Callable[[A], R], items: Iterable[A], limit: int) -> Iterator[R]:
    """Yield the result of each item, in order. At most `limit` items are taken from the source and not yielded yet.

    Raises:
        Exception: the error of the first item that fails. Requests in flight are awaited, and no other begins.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(limit) as pool:
        try:
            for item in items:
                if len(waiting) == limit:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(operation, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
