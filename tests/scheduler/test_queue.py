"""The queues of schedulers beside plain lists."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyengine.priority import UrgentQueue, urgency
from tinyengine.queue import Queue
from tinyengine.request import Request, Slo


class QueueMachine(RuleBasedStateMachine):
    """Anything that a scheduler, a test or a learner does to its queue."""

    @initialize(urgent=st.booleans())
    def build(self, urgent):
        self.urgent = urgent
        self.queue = UrgentQueue() if urgent else Queue()
        self.model: list[Request] = []
        self.gone: list[Request] = []
        self.made = 0

    def new(self, priority: int, due: float | None) -> Request:
        self.made += 1
        return Request(f"r{self.made}", [1], priority=priority, arrival=float(self.made % 3), slo=Slo(ttft=due))

    def sort(self):
        if self.urgent:
            self.model.sort(key=urgency)  # stable: of equals, the order in which they came

    @rule(priority=st.integers(0, 2), due=st.sampled_from([None, None, 1.0]))
    def append(self, priority, due):
        self.model.append(self.new(priority, due))
        self.queue.append(self.model[-1])
        self.sort()

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def put_back_to_the_front(self, data):
        self.model.insert(0, self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1))))
        self.queue.appendleft(self.model[0])
        self.sort()

    @precondition(lambda self: self.model)
    @rule()
    def take_the_first(self):
        self.gone.append(self.model.pop(0))
        assert self.queue.popleft() is self.gone[-1]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_from_anywhere(self, data):
        self.gone.append(self.model.pop(data.draw(st.integers(0, len(self.model) - 1))))
        self.queue.remove(self.gone[-1])

    @invariant()
    def it_is_the_list(self):
        assert list(self.queue) == self.model and len(self.queue) == len(self.model)
        assert bool(self.queue) == bool(self.model)
        assert [self.queue[index] for index in range(len(self.model))] == self.model
        assert all(request in self.queue for request in self.model)
        assert not any(request in self.queue for request in self.gone)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)


@pytest.mark.parametrize("kind", [Queue, UrgentQueue])
def test_an_empty_queue_has_no_first(kind):
    with pytest.raises(IndexError):
        kind()[0]
    with pytest.raises((IndexError, KeyError)):
        kind().popleft()


@pytest.mark.parametrize("kind", [Queue, UrgentQueue])
def test_a_namesake_is_another_request(kind):
    queue, one = kind(), Request("r", [1])
    queue.append(one)
    assert one in queue and Request("r", [1]) not in queue


def test_a_queue_can_be_made_of_requests():
    requests = [Request(f"r{number}", [1]) for number in range(3)]
    assert list(Queue(requests)) == requests and list(Queue()) == []


@pytest.mark.parametrize("kind", [Queue, UrgentQueue])
def test_one_that_is_not_there_cannot_be_removed(kind):
    with pytest.raises(KeyError):
        kind().remove(Request("r", [1]))
