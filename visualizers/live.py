"""A picture of an engine while it runs: the engine steps in a thread of its own, and the widget is sent what it did."""

import threading
import time
from typing import Protocol

from tinyengine.trace import Trace
from visualizers.player import Player

SHARE = 0.2  # of the time goes into pictures, at most


class Steps(Protocol):
    """What is needed of an engine."""

    trace: Trace

    def has_unfinished(self) -> bool: ...
    def step(self): ...


class LivePlayer(Player):
    """Runs `engine` until it has no unfinished requests, and draws it meanwhile.

    interval: seconds between two pictures, at least. pace: seconds that each iteration is made to last, so that a fast
    engine can be watched. Options are those of show. Between `pause()` and `resume()` the engine is yours: add requests
    or step it. The button in the widget does the same.
    """

    def __init__(self, engine: Steps, interval: float = 0.25, pace: float = 0.0, **options):
        self._expected = options.pop("expected", None)  # of requests, too, that are added later
        super().__init__({engine.trace.stage or "engine": engine.trace}, **options)
        self.engine = engine
        self._refresh()
        self.error: Exception | None = None
        self._interval, self._pace = interval, pace
        self._go, self._stopped, self._step = threading.Event(), threading.Event(), threading.Lock()
        self._go.set()
        self._thread = threading.Thread(target=self._run, name="live engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def pause(self):
        """Returns when the step under way is done."""
        self._go.clear()
        with self._step:
            self._refresh()
        self._tell()

    def resume(self):
        self._go.set()
        self._tell()

    def stop(self):
        """Ends the thread; the engine keeps its unfinished requests."""
        self._stopped.set()
        self._go.set()
        self._thread.join()

    def wait(self, timeout: float | None = None):
        """Until the engine has no unfinished requests. Raises what the engine raised."""
        self._thread.join(timeout)
        if self.error is not None:
            raise self.error

    @property
    def widget(self):
        made = "_widget" in self.__dict__
        widget = super().widget
        if not made:
            self._tell()
            widget.observe(lambda change: self.pause() if change["new"] else self.resume(), "paused")
        return widget

    def _run(self):
        drawn, cost = time.monotonic(), 0.0
        try:
            while not self._stopped.is_set():
                self._go.wait()
                began = time.monotonic()
                with self._step:
                    if self.paused or self._stopped.is_set():
                        continue
                    if not self.engine.has_unfinished():
                        break
                    self.engine.step()
                    if began - drawn > max(self._interval, cost / SHARE):
                        self._refresh()
                        drawn = time.monotonic()
                        cost = drawn - began
                time.sleep(max(0.0, self._pace - (time.monotonic() - began)))
        except Exception as error:  # shown by wait(); a thread's own traceback would land in no cell
            self.error = error
        with self._step:
            self._refresh()
        self._tell(running=False)

    def _refresh(self):
        self.load({self.engine.trace.stage or "engine": self.engine.trace}, self._expected)
        if "_widget" in self.__dict__:
            self._widget.data = self.text()

    def _tell(self, running: bool | None = None):
        if "_widget" in self.__dict__:
            self._widget.running = self.running if running is None else running
            self._widget.paused = self.paused
