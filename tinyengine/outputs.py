"""What users get: tokens become text, and stop strings, `stop_when` and errors end a request."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from tinyengine.detokenizer import Detokenizer
from tinyengine.guard import Busy, Guard
from tinyengine.request import Request
from tinyengine.scheduler import Scheduler, Token
from tinyengine.trace import Trace


@dataclass
class Output:
    """What a request has produced so far. `pieces` is the text that each token made certain ("" while a character or a
    possible stop string is incomplete); finish_reason is None while it runs, then "stop" (end of sequence, stop token,
    stop string or stop_when), "length" (max_tokens), "abort", or "error" (its stop_when or the tokenizer raised
    `error`)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: Exception | None = None

    @property
    def text(self) -> str:
        """Without special tokens, and up to a stop string."""
        return "".join(self.pieces)

    def token(self, index: int) -> "StreamedToken":
        is_last = index == len(self.token_ids) - 1
        reason = self.finish_reason if is_last else None
        return StreamedToken(self.request_id, self.token_ids[index], self.pieces[index], reason)


@dataclass(frozen=True)
class StreamedToken:
    """One token of a stream, and the text that it made certain."""

    request_id: str
    token_id: int
    text: str
    finish_reason: str | None


@dataclass
class Open:
    """An unfinished request, with what turns its tokens into text; None for a model without a tokenizer."""

    request: Request
    output: Output
    detokenizer: Detokenizer | None


class Outputs(dict):
    """The output of each request, by request id. Pop what you have read: an output stays until it is popped.

    open: an Open of each unfinished request, by id, also of those whose output was popped already.

    The way of a token:
        put        takes it as the commit gave it
        settle     writes it into its output as text, asks stop_when, ends the request
        deliver    settle; returns it from the step

    The ways of a request:
        add        opens it: from now on it has an output
        arrived    tells the trace of it
        settle     ends it, by its newest token
        abort      ends it now
        drop       asks for an abort, and for its output to be forgotten: now, or by the next sweep
        sweep      does what drop could not do in the middle of a step
    """

    def __init__(self, scheduler: Scheduler, trace: Trace, guard: Guard, tokenizer):
        super().__init__()
        self.open: dict[str, Open] = {}
        self._scheduler, self._trace, self._guard, self._tokenizer = scheduler, trace, guard, tokenizer
        self._committed: deque[Token] = deque()  # not in an output yet
        self._written: deque[tuple[Open, int, str | None]] = deque()  # of which stop_when has not been asked yet
        self._streamed: list[StreamedToken] = []  # not returned by a step yet
        self._dropped: deque[str] = deque()

    def add(self, request: Request, prompt: str | None):
        output = Output(request.request_id, prompt, list(request.prompt_token_ids))
        detokenizer = None if self._tokenizer is None else Detokenizer(self._tokenizer, request.params.stop)
        self.open[request.request_id] = Open(request, output, detokenizer)
        self[request.request_id] = output

    def arrived(self, request: Request):
        """Tells the trace of it."""
        output = self.open[request.request_id].output
        self._trace.arrive(request, output.prompt)
        self._trace.pieces[request.request_id] = output.pieces

    def put(self, tokens: list[Token]):
        """Takes what a commit gave."""
        self._committed.extend(tokens)

    def settle(self):
        """Turns what was put into text, and ends the requests that end with it. It may be interrupted while a stop_when
        runs; called again, it asks that one again and goes on. Raises RuntimeError while the model runs: a hook in it
        cannot step the engine."""
        if self._guard.computes:
            raise RuntimeError("the engine is stepped from inside its own model, by a hook: step it after the step")
        while self._written or self._committed:
            if not self._written:
                self._write(self._committed[0])
                self._committed.popleft()
                continue
            entry, place, reason = self._written.popleft()
            try:
                reason = self._ask_stop_when(entry, place) or reason
                if reason and self.open.get(entry.request.request_id) is entry:  # its stop_when may have aborted it
                    self._end(entry, reason)
            except BaseException:  # an interrupt
                self._written.appendleft((entry, place, reason))
                raise
            self._streamed.append(entry.output.token(place))

    def deliver(self) -> list[StreamedToken]:
        """`settle`, and the tokens that no step has returned yet."""
        self.settle()
        streamed, self._streamed = self._streamed, []
        return streamed

    def abort(self, request_id: str):
        """Ends an unfinished request now, wherever it is."""
        entry = self.open.pop(request_id)
        self._written = deque(written for written in self._written if written[0] is not entry)
        self._scheduler.abort(entry.request)
        entry.output.finish_reason = "abort"
        if request_id in self._trace.requests:  # else it never arrived, and the trace knows nothing of it
            self._trace.event("abort", request_id)

    def knows(self, request_id: str) -> bool:
        """Whether an id is in use: by an unfinished request, by an output that was not popped, or in the trace."""
        places = self.open, self, self._trace.requests
        return isinstance(request_id, str) and any(request_id in place for place in places)

    def drop(self, request_ids: list[str]):
        """Aborts these and forgets their outputs: now, or if a step is running, before the next one."""
        self._dropped.extend(request_ids)
        if not self._guard.is_held:
            with suppress(Busy), self._guard:
                self.sweep()

    def sweep(self):
        """Aborts and forgets what was dropped."""
        while self._dropped:
            request_id = self._dropped[0]
            if request_id in self.open:
                self.abort(request_id)
            self.pop(request_id, None)
            self._streamed = [token for token in self._streamed if token.request_id != request_id]
            self._dropped.popleft()

    def _write(self, token: Token):
        """Appends a token and its text to the output, or withdraws one of a request that has ended since: by a stop
        string among several tokens of one step, or aborted in another's stop_when."""
        entry = self.open.get(token.request.request_id)
        if entry is None or entry.request is not token.request:
            self._trace.withdraw(token.request.request_id)
            return
        output, reason, text = entry.output, token.finish_reason, ""
        if entry.detokenizer:
            try:
                text = entry.detokenizer.push(token.token_id)
                reason = "stop" if entry.detokenizer.stopped else reason
            except Exception as error:  # the tokenizer's: it ends this request, and no other
                output.error, reason = error, "error"
        output.token_ids.append(token.token_id)
        output.pieces.append(text)
        self._written.append((entry, len(output.token_ids) - 1, reason))

    def _ask_stop_when(self, entry: Open, place: int) -> str | None:
        """Runs the user's function. What it raises ends its own request, never the step: others have tokens in it."""
        stop_when = entry.request.params.stop_when
        if stop_when is None or entry.output.error:
            return None
        try:
            with self._guard.window():
                return "stop" if stop_when(entry.output.token_ids[: place + 1]) else None
        except Exception as error:
            entry.output.error = error
            return "error"

    def _end(self, entry: Open, reason: str):
        output, detokenizer = entry.output, entry.detokenizer
        if detokenizer and not detokenizer.stopped and not output.error:
            try:
                output.pieces[-1] += detokenizer.flush()
            except Exception as error:
                output.error, reason = error, "error"
        output.finish_reason = reason
        del self.open[output.request_id]
        self._scheduler.finish(entry.request, reason)
        self._trace.event("finish", output.request_id, reason)
