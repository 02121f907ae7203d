"""The tokens of one or more prompts as they come."""

from collections import deque
from collections.abc import Sequence

from tinyengine.inputs import Prompt, as_list, one_each
from tinyengine.outputs import Output, StreamedToken
from tinyengine.params import SamplingParams


class Stream:
    """Iterates over the tokens of its prompts, and steps the engine for them, beside whatever else the engine has to
    do. Closed early, or forgotten, its requests are aborted and their memory is free; several streams, and other
    requests, may run side by side. outputs: of its requests, in order of the prompts.
    """

    def __init__(self, engine, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]):
        prompts = as_list(prompts)
        params = one_each(params, prompts)
        self.outputs: list[Output] = []
        self._engine = engine
        self._ready: deque[StreamedToken] = deque()
        self._is_open = True
        with engine.guard:
            try:
                for request in zip(prompts, params):
                    self.outputs.append(engine.outputs[engine.add_request(*request)])
            except BaseException:
                self._end()
                raise
        self._given = [0] * len(self.outputs)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> StreamedToken:
        with self._engine.guard:
            self._engine.outputs.settle()  # what an interrupted step has left
            while not self._collect():
                if all(output.finish_reason for output in self.outputs):
                    self._end()
                    raise StopIteration
                self._engine.step()
            return self._ready.popleft()

    def _collect(self) -> bool:
        """Takes what is new from the outputs, not from step(): another stream may do the stepping."""
        for number, output in enumerate(self.outputs):
            for place in range(self._given[number], len(output.token_ids)):
                self._ready.append(output.token(place))
            self._given[number] = len(output.token_ids)
        return bool(self._ready)

    def _end(self):
        """`close`, and at once, though this is a call at work: it has nothing else under way."""
        self.close()
        self._engine.outputs.sweep()

    def close(self):
        """Aborts its requests that are unfinished, and forgets their outputs."""
        if self._is_open:
            self._engine.outputs.drop([output.request_id for output in self.outputs])
            self._is_open = False

    def __del__(self):
        if hasattr(self, "_is_open"):  # else its arguments were refused
            self.close()
