"""What a picture says in numbers, from the very dict that it is drawn from. Pure Python."""

KINDS = ("prefill", "chunk", "decode", "recompute", "guess", "padding")  # of rows of a batch


def running(engine: dict) -> list[int]:
    """Requests that ran, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, length, *_ in engine["runs"]:
        for number in range(first, first + length):
            counts[number] += 1
    return counts


def lists(changes: list[list], count: int) -> list[list[int]]:
    """The batch or the queue of each iteration, from its changes."""
    found, now = [], []
    by_iteration = {number: (gone, come) for number, gone, come in changes}
    for number in range(count):
        gone, come = by_iteration.get(number, ([], []))
        if gone:
            left = set(gone)
            now = [request for request in now if request not in left]
        if come:
            now = list(now)
        for place, request in come:
            now.insert(place, request)
        found.append(now)
    return found


def waiting(engine: dict) -> list[list[int]]:
    """The queue, per iteration."""
    return lists(engine["waiting"], len(engine["time"]))


def tokens_out(engine: dict) -> list[int]:
    """Tokens emitted, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, _, _, _, tokens, *_ in engine["runs"]:
        for number, emitted in enumerate(tokens, first):
            counts[number] += 0 if emitted is None else len(emitted) if isinstance(emitted, list) else 1
    return counts


def composition(engine: dict) -> list[list[int]]:
    """Rows of each iteration's batch, by kind (KINDS). A guess is a token that speculation tried."""
    counts = [[0] * len(KINDS) for _ in engine["time"]]
    for _, _, phase, first, length, _, n_tokens, _, draft, _ in engine["runs"]:
        for number in range(first, first + length):
            counts[number][phase] += n_tokens - draft
            counts[number][KINDS.index("guess")] += draft
    for row, padding in zip(counts, engine["padding"], strict=True):
        row[-1] = padding
    return counts


def figures(engine: dict, iteration: int | None = None) -> dict:
    """The readout at the playhead: iterations 0 to `iteration`, that one included (None: all of them).

    occupancy: busy slot-steps / slot-steps, 0 to 1, or None where no iteration ran.
    """
    stop = len(engine["time"]) if iteration is None else iteration + 1
    busy, slot_steps = sum(running(engine)[:stop]), engine["slots"] * min(stop, len(engine["time"]))
    return {
        "iterations": min(stop, len(engine["time"])),
        "running": running(engine)[:stop][-1] if slot_steps else 0,
        "waiting": len(waiting(engine)[:stop][-1]) if slot_steps else 0,
        "idle_slot_steps": slot_steps - busy,
        "padding": sum(engine["padding"][:stop]),
        "tokens_out": sum(tokens_out(engine)[:stop]),
        "occupancy": busy / slot_steps if slot_steps else None,
    }
