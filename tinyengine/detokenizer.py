"""Tokens to text as they come, without half a character and without the beginning of a stop string."""

HALF = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer puts for bytes that are no character, or not one yet


class Detokenizer:
    """The text of one request's output, piece by piece.

    A character can be spread over several tokens, and a tokenizer may decode a token differently behind another one. So
    a piece is the difference of two decodings over a small window (as in Hugging Face's text-generation-inference; the
    `DecodeStream` of their tokenizers raises where a model emits bytes that are no text).

    stop: strings that end the output. Text that may be the beginning of one is held back until that is known.
    """

    def __init__(self, tokenizer, stop: tuple[str, ...] = ()):
        self.tokenizer = tokenizer
        self.stop = stop
        self.stopped = False
        self._tokens: list[int] = []
        self._window = 0  # decoding starts here: far enough back that the new tokens decode as they will in the end
        self._read = 0  # tokens before this one have been turned into text
        self._held = ""

    def push(self, token: int) -> str:
        """The text that `token` makes certain; "" while a character or a possible stop string is incomplete. After a
        stop string has appeared `stopped` is True and nothing more comes."""
        self._tokens.append(token)
        try:
            text = self._unread()
        except BaseException:  # the tokenizer's: as if it had not been called
            self._tokens.pop()
            raise
        if not text or text.endswith(HALF):
            return ""
        self._window, self._read = self._read, len(self._tokens)
        return self._release(text)

    def flush(self) -> str:
        """What was held back, when the output ends without a stop string. Half a character is never given."""
        text = self._release(self._unread().rstrip(HALF))
        text, self._held = text + self._held, ""
        return text

    def _unread(self) -> str:
        before = self._decode(self._window, self._read)
        return self._decode(self._window, len(self._tokens))[len(before) :]

    def _decode(self, first: int, end: int) -> str:
        return self.tokenizer.decode(self._tokens[first:end], skip_special_tokens=True)

    def _release(self, text: str) -> str:
        text = self._held + text
        found = [place for place in map(text.find, self.stop) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, and not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
