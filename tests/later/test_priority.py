"""What is urgent. How a scheduler serves by it: see scheduler/test_chunked.py."""

from math import inf

import pytest

from tinyengine.priority import deadline, urgency
from tinyengine.request import Request, Slo


def test_a_deadline_is_arrival_plus_the_promise():
    assert deadline(Request("r", [1], arrival=3.0, slo=Slo(ttft=0.5))) == 3.5
    assert deadline(Request("r", [1], arrival=3.0, slo=Slo(tbt=0.5))) == deadline(Request("r", [1])) == inf


@pytest.mark.parametrize(
    ("sooner", "later"),
    [
        ({"priority": -1, "arrival": 9.0}, {"priority": 0, "slo": Slo(ttft=0.1)}),
        ({"arrival": 2.0, "slo": Slo(ttft=1.0)}, {"arrival": 1.0, "slo": Slo(ttft=2.5)}),
        ({"arrival": 2.0, "slo": Slo(ttft=1.0)}, {"arrival": 1.0}),
        ({"arrival": 1.0}, {"arrival": 2.0}),
        ({"arrival": 1.0, "slo": Slo(ttft=2.0)}, {"arrival": 2.0, "slo": Slo(ttft=1.0)}),  # due at once: the first
    ],
)
def test_priority_counts_first_then_the_deadline_then_the_arrival(sooner, later):
    assert urgency(Request("a", [1], **sooner)) < urgency(Request("b", [1], **later))
