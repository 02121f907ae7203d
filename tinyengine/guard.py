"""One thread at a time, and nothing half done: what a method of the engine does, it does whole or not at all."""

import signal
import threading
import time
from collections.abc import Callable
from functools import wraps
from types import FrameType, FunctionType

PATIENCE = 1.0  # seconds


class Busy(RuntimeError):
    """Another thread is using the engine."""


class Guard:
    """`with guard:` is a critical part. A second thread that comes meanwhile is refused in one sentence. An interrupt
    (Ctrl-C, the stop button of a notebook) waits for the end of the part, or for a window in it:

        with guard.window():    # the model, a user's function, sleep: they take long, and leave nothing half done

    One that comes PATIENCE seconds after the first does not wait: it stops an endless loop in a critical part, in a
    learner's `schedule`, say. Any sooner is the same key, pressed twice.
    However many come, none stops the guard itself, which would leave a part open for ever.
    Python handles signals in its main thread, so in any other thread there is no interrupt to wait.

    Raises Busy, which is a RuntimeError, for a second thread.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._parts: list[tuple[bool, bool]] = []  # of each part that is open: what is put back at its end
        self._held = False
        self._usual = None  # the handler of interrupts, while ours is in its place: from the first part to its end
        self._waits_since: float | None = None  # when the interrupt that waits has come
        self.computes = False  # the model is running

    @property
    def is_held(self) -> bool:
        """Whether this thread is in a critical part, and not in a window of it."""
        return self._held and self._owner == threading.get_ident()

    def __enter__(self):
        first = self._take_over()  # before anything else: from here on an interrupt waits
        if not self._lock.acquire(blocking=False):
            if first:
                self._put_back()
            raise Busy(
                "another thread is using this engine, and an engine serves one thread at a time: give each thread an "
                "engine of its own (they can share one model), or let one thread make all calls"
            )
        self._owner = threading.get_ident()
        self._parts.append((self._held, first))
        self._held = True

    def __exit__(self, *error):
        held, first = self._parts.pop()
        self._held = held
        self.computes = self.computes and bool(self._parts)
        self._lock.release()
        if first:
            self._put_back()
        elif not held:
            self._let_in()

    def window(self, computes: bool = False) -> "Window":
        """Here an interrupt comes in at once, also one that has waited for it. computes: the model runs in it."""
        return Window(self, computes)

    def _take_over(self) -> bool:
        """Whether interrupts come to this guard from now on, and did not before."""
        if self._usual is not None or threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGINT) is None:  # a handler that Python does not know, and could not put back
            return False
        self._waits_since = None
        self._usual = signal.signal(signal.SIGINT, self._note)
        return True

    def _put_back(self):
        usual, self._usual = self._usual, None
        signal.signal(signal.SIGINT, usual)
        if self._waits_since is not None:
            self._pass_on(usual)

    def _let_in(self):
        """An interrupt that has waited."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._waits_since is not None and self._usual is not None and is_main:
            self._pass_on(self._usual)

    def _note(self, number: int, frame: FrameType | None):
        now = time.monotonic()
        first = now if self._waits_since is None else self._waits_since
        if (self._held and now - first < PATIENCE) or _is_ours(frame):
            self._waits_since = first
        else:
            self._pass_on(self._usual, frame)

    def _pass_on(self, usual, frame: FrameType | None = None):
        self._waits_since = None
        if callable(usual):
            usual(signal.SIGINT, frame)
        else:  # SIG_DFL or SIG_IGN
            signal.signal(signal.SIGINT, usual)
            signal.raise_signal(signal.SIGINT)


class Window:
    """See Guard.window. Not a generator, which an interrupt could leave half entered."""

    def __init__(self, guard: Guard, computes: bool):
        self._guard, self._before = guard, (guard._held, guard.computes)
        self._computes = computes

    def __enter__(self):
        self._guard._let_in()
        self._guard._held, self._guard.computes = False, self._computes

    def __exit__(self, *error):
        self._guard._held, self._guard.computes = self._before


METHODS = [method for kind in (Guard, Window) for method in vars(kind).values() if isinstance(method, FunctionType)]
OURS = {method.__code__ for method in METHODS}


def _is_ours(frame: FrameType | None) -> bool:
    """Whether the guard itself would be stopped, or what it calls."""
    while frame is not None and frame.f_code not in OURS:
        frame = frame.f_back
    return frame is not None


def whole(method: Callable) -> Callable:
    """A method of an object with a `guard`, as a critical part."""

    @wraps(method)
    def guarded(self, *args, **options):
        with self.guard:
            return method(self, *args, **options)

    return guarded
