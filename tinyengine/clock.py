"""The engine's one clock, injected, so that a test or a lesson can count in iterations instead of seconds."""

import time


class WallClock:
    """Seconds since it was made."""

    def __init__(self):
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def iteration_done(self):
        """Real time has passed by itself."""

    def wait_until(self, moment: float):
        time.sleep(max(0.0, moment - self.now()))


class IterationClock:
    """Time in iterations: each lasts `seconds`, whatever the machine does. The same run gives the same trace."""

    def __init__(self, seconds: float = 1.0):
        self.seconds = seconds
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def iteration_done(self):
        self._now += self.seconds

    def wait_until(self, moment: float):
        self._now = max(self._now, moment)
