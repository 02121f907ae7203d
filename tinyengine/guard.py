"""One thread at a time, and nothing half done: what a method of the engine does, it does whole or not at all."""

import signal
import threading
from collections.abc import Callable
from functools import wraps


class Busy(RuntimeError):
    """Another thread is using the engine."""


class Guard:
    """`with guard:` is a critical part. A second thread that comes meanwhile is refused in one sentence. An interrupt
    (Ctrl-C, the stop button of a notebook) waits for the end of the part, or for a window in it:

        with guard.window():    # the model, a user's function, sleep: they take long, and leave nothing half done

    A second interrupt does not wait: it stops an endless loop in a critical part, in a learner's `schedule`, say.
    Python handles signals in its main thread, so in any other thread there is no interrupt to wait.

    Raises Busy, which is a RuntimeError, for a second thread.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._parts: list[tuple[bool, bool]] = []  # of each part that is open: what is put back at its end
        self._held = False
        self._usual = None  # the handler of interrupts, while ours is in its place
        self._interrupted = False
        self.computes = False  # the model is running

    @property
    def is_held(self) -> bool:
        """Whether this thread is in a critical part, and not in a window of it."""
        return self._held and self._owner == threading.get_ident()

    def __enter__(self):
        holds = self._hold()  # before anything else: from here on an interrupt waits
        if not self._lock.acquire(blocking=False):
            if holds:
                self._let_go()
            raise Busy(
                "another thread is using this engine, and an engine serves one thread at a time: give each thread an "
                "engine of its own (they can share one model), or let one thread make all calls"
            )
        self._owner = threading.get_ident()
        self._parts.append((self._held, holds))
        self._held = True

    def __exit__(self, *error):
        self._held, held = self._parts.pop()
        self.computes = self.computes and bool(self._parts)
        self._lock.release()
        if held:
            self._let_go()

    def window(self, computes: bool = False) -> "Window":
        """Here an interrupt comes in at once, also one that has waited for it. computes: the model runs in it."""
        return Window(self, computes)

    def _hold(self) -> bool:
        """Whether an interrupt has to wait from now on, and did not before."""
        if self._usual is not None or threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGINT) is None:  # a handler that Python does not know, and could not put back
            return False
        self._interrupted = False
        self._usual = signal.signal(signal.SIGINT, self._note)
        return True

    def _let_go(self):
        if self._usual is None or threading.current_thread() is not threading.main_thread():
            return
        usual, self._usual = self._usual, None
        signal.signal(signal.SIGINT, usual)
        if self._interrupted:
            self._interrupted = False
            signal.raise_signal(signal.SIGINT)

    def _note(self, number, frame):
        if self._interrupted:
            self._let_go()
        self._interrupted = True


class Window:
    """See Guard.window. Not a generator, which an interrupt could leave half entered."""

    def __init__(self, guard: Guard, computes: bool):
        self._guard, self._before = guard, (guard._held, guard.computes)
        self._computes = computes

    def __enter__(self):
        self._guard._let_go()
        self._guard._held, self._guard.computes = False, self._computes

    def __exit__(self, *error):
        held, computes = self._before
        self._guard.computes = computes
        if held:
            self._guard._hold()
        self._guard._held = held


def whole(method: Callable) -> Callable:
    """A method of an object with a `guard`, as a critical part."""

    @wraps(method)
    def guarded(self, *args, **options):
        with self.guard:
            return method(self, *args, **options)

    return guarded
