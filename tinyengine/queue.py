"""The queue of a scheduler."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from tinyengine.request import Request


class Queue:
    """Requests in order, as in a deque; but one that leaves from the middle does so at once, however many wait."""

    def __init__(self, requests: Iterable[Request] = ()):
        self.by_id = OrderedDict((request.request_id, request) for request in requests)

    def append(self, request: Request):
        self.by_id[request.request_id] = request

    def appendleft(self, request: Request):
        self.append(request)
        self.by_id.move_to_end(request.request_id, last=False)

    def popleft(self) -> Request:
        return self.by_id.popitem(last=False)[1]

    def remove(self, request: Request):
        del self.by_id[request.request_id]

    def __getitem__(self, index: int) -> Request:
        return next(iter(self)) if index == 0 and self.by_id else list(self)[index]

    def __contains__(self, request: Request) -> bool:
        return self.by_id.get(request.request_id) is request

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.by_id.values())
