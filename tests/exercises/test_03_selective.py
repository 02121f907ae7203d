"""Exercises 03: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

import inspect

import pytest
import torch
from helpers.course import ROOT, Audit, solutions

from tinyengine.course import rows as given
from tinyengine.course.grader import manifest
from tinyengine.course.referees import selective
from tinyengine.inputs import encode
from tinyengine.workload import chat

CHECKS = (selective.check_3_1, selective.check_3_2, selective.check_3_3, selective.check_3_4, selective.check_3_5)
SOLUTIONS = solutions("03_selective")
ITERATION = SOLUTIONS["iteration"]


def changed(*changes):
    """The repaired loop, written in another way."""
    text = ITERATION
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


RIGHT = {
    "3.1 tensors, concatenated": """
        def flat(chunks):
            tokens = torch.cat([torch.tensor(ids) for ids, _ in chunks])
            positions = torch.cat([first + torch.arange(len(ids)) for ids, first in chunks])
            starts = [0, *accumulate(len(ids) for ids, _ in chunks)]
            return tokens, positions, starts, torch.tensor([end - 1 for end in starts[1:]])
    """,
    "3.1 row by row, and a tuple of ints": """
        def flat(chunks):
            rows, starts, last = [], (0,), []
            for index in range(len(chunks)):
                ids, first = chunks[index]
                while ids:
                    rows.append([ids.pop(0), first])
                    first += 1
                last.append(len(rows) - 1)
                starts += (len(rows),)
            stream = torch.tensor(rows, dtype=torch.int32)
            return [stream[:, 0], stream[:, 1], list(starts), torch.tensor(last)]
    """,
    "3.2 an output that is filled": """
        def attend_each(q, starts, keys, values):
            out = torch.empty_like(q)
            for i in range(len(starts) - 1):
                rows = slice(starts[i], starts[i + 1])
                out[rows] = attend(q[rows], keys[i], values[i])
            return out
    """,
    "3.2 row by row, each with the keys up to its own": """
        def attend_each(q, starts, keys, values):
            out = torch.zeros(q.shape)
            for i, (start, end) in enumerate(zip(starts, starts[1:])):
                for row in range(start, end):
                    seen = len(keys[i]) - (end - 1 - row)
                    out[row] = attend(q[row : row + 1], keys[i][:seen], values[i][:seen])[0]
            return out
    """,
    "3.2 one mask over all keys": """
        def attend_each(q, starts, keys, values):
            seen = torch.zeros(len(q), sum(map(len, keys)), dtype=torch.bool)
            first = 0
            for (start, end), own in zip(pairwise(starts), keys):
                seen[start:end, first : first + len(own)] = torch.ones(end - start, len(own)).tril(
                    len(own) - (end - start)
                )
                first += len(own)
            share = q.shape[1] // keys[0].shape[1]
            k, v = (torch.cat(list(x)).repeat_interleave(share, dim=1) for x in (keys, values))
            scores = torch.einsum("nhd,lhd->hnl", q, k) / q.shape[2] ** 0.5
            return torch.einsum("hnl,lhd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    """,
    "3.3 other neighbours, and another place": """
        def is_row_wise(operation, x, positions):
            here = operation(x, positions)
            for row in range(len(x)):
                other = torch.randn_like(x)
                other[row] = x[row]
                if (operation(other, positions)[row] - here[row]).abs().max() > 1e-4:
                    return False
            turned = operation(x.flip(0), positions.flip(0)).flip(0)
            return ((turned - here).abs() < 1e-4).all()
    """,
    "3.3 all rows alone, put together": """
        def is_row_wise(operation, x, positions):
            alone = [operation(x[i : i + 1], positions[i : i + 1]) for i in range(len(x))]
            return torch.cat(alone).isclose(operation(x, positions), atol=1e-4).all().item()
    """,
    "3.4 request by request": """
        def sample(logits, temperature, top_p, noise):
            tokens = []
            for row, heat, share, own in zip(logits, temperature.tolist(), top_p.tolist(), noise):
                if heat == 0:
                    tokens.append(row.argmax().item())
                    continue
                scores, kept, reached = row / heat, [], 0.0
                probability = scores.softmax(-1)
                for token in probability.argsort(descending=True).tolist():
                    kept.append(token)
                    reached += probability[token].item()
                    if reached >= share:
                        break
                tokens.append(max(kept, key=lambda token: (scores[token] + own[token]).item()))
            return torch.tensor(tokens)
    """,
    "3.4 log-probabilities, and the smallest that is kept": """
        def sample(logits, temperature, top_p, noise):
            heat = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
            scores = (logits / heat[:, None]).log_softmax(-1)
            probability = scores.exp()
            ordered = probability.sort(dim=-1, descending=True).values
            count = (ordered.cumsum(-1) < top_p[:, None]).sum(-1).clamp(max=logits.shape[1] - 1)
            least = ordered.gather(1, count[:, None])
            scores = scores + torch.where(temperature > 0, 1.0, 0.0)[:, None] * noise
            return scores.masked_fill(probability < least, -torch.inf).argmax(-1)
    """,
    "3.5 the position says the length": changed(
        ("slice(0, len(r.tokens))", "slice(0, positions[end - 1] + 1)"),
    ),
    "3.5 an output that is filled": changed(
        ("parts = []", "out = torch.empty_like(q)"),
        ("parts.append(attend(q[start:end], keys, values))", "out[start:end] = attend(q[start:end], keys, values)"),
        ("return torch.cat(parts)", "return out"),
    ),
}
FLAT = SOLUTIONS["flat"]
ODD = {  # what a learner wrote: points, and what the grader says
    "3.1 lists": (FLAT.replace("torch.tensor(tokens)", "tokens"), 4, "tokens is [7, 8, 9], where a tensor is needed"),
    "3.1 floats": (
        FLAT.replace("torch.tensor(positions)", "torch.tensor(positions).float()"),
        4,
        "positions is a tensor of float32, where whole numbers are needed",
    ),
    "3.1 no last": (
        FLAT.replace("starts, last\n", "starts\n"),
        0,
        "where (tokens, positions, starts, last) is needed",
    ),
    "3.2 no return": (SOLUTIONS["attend_each"].replace("return ", ""), 0, "did you forget to return?"),
    "3.2 a number": ("def attend_each(*args):\n    return 42", 0, "you have 42, where a tensor is needed"),
    "3.2 heads in a row": (
        SOLUTIONS["attend_each"].replace("torch.cat(parts)", "torch.cat(parts).flatten(1)"),
        0,
        "you have a tensor of shape [5, 32], which is not q's shape",
    ),
    "3.3 words": (
        "def is_row_wise(operation, x, positions):\n    return 'yes'",
        0,
        "you have 'yes', where True or False is needed",
    ),
    "3.3 always False": ("def is_row_wise(*args):\n    return False", 0, "you say the same of all operations"),
    "3.2 the queries": ("def attend_each(q, *args):\n    return q.clone()", 0, "row 0, of request 0, is off by"),
    "3.4 greedy": (
        "def sample(logits, *args):\n    return logits.argmax(-1)",
        0,
        "temperature above 0 draws: request ",
    ),
    "3.4 in place": (
        SOLUTIONS["sample"].replace("    scaled = logits", "    logits -= 1\n    scaled = logits"),
        0,
        "you change logits in place",
    ),
    "3.5 unchanged": (selective.check_3_5.source(selective.check_3_5.mistakes[0]), 0, "goes wrong at its token"),
    "3.4 a list": (
        "def sample(logits, temperature, top_p, noise):\n    return logits.argmax(-1).tolist()",
        0,
        "where a tensor of 30 token ids is needed",
    ),
    "3.5 nothing happens": (
        "def iteration(model, batch):\n    return batch",
        0,
        "each request of the batch must get one token in each iteration",
    ),
}


class TestSelective(Audit):
    stem, checks, right, odd = "03_selective", CHECKS, RIGHT, ODD


# What the notebook says, measured.


def test_the_stream_worked_by_hand():
    tokens, positions, starts, last = selective.flat(selective.HAND)
    assert tokens.tolist() == [41, 17, 30, 31, 50, 51, 52] and positions.tolist() == [3, 5, 0, 1, 0, 1, 2]
    assert starts == [0, 1, 2, 4, 7] and last.tolist() == [0, 1, 3, 6]


@pytest.mark.parametrize("temperature, top_p, token", [(1.0, 0.7, 1), (1.0, 1.0, 2), (0.0, 1.0, 0)])
def test_the_draw_worked_by_hand(temperature, top_p, token):
    logits, noise = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), torch.tensor([[0.1, 0.9, 2.5, 0.2]])
    assert selective.sample(logits, torch.tensor([temperature]), torch.tensor([top_p]), noise).tolist() == [token]


def test_there_are_as_many_operations_as_the_notebook_says():
    assert len(given.OPERATIONS) == 18 and given.WIDTH == 64


def test_the_loop_is_right_for_the_last_request_only():
    lengths = [len(encode(given.tiny(), chat(question), "")) for question in given.QUESTIONS]
    assert lengths == [19, 9, 9, 7]
    look_up, france, _, mia = given.QUESTIONS
    right = [given.answers(given.broken_iteration, question)[0] for question in (look_up, france, mia)]
    assert right == ["owl", "Paris", "Hello Mia."]
    for order in ((0, 1, 2), (2, 1, 0)):
        questions, alone = [(look_up, france, mia)[n] for n in order], [right[n] for n in order]
        together = given.answers(given.broken_iteration, *questions)
        assert [a == b for a, b in zip(together, alone)] == [False, False, True]
    assert given.answers(selective.iteration, look_up, france, mia) == right


def test_the_answer_cell_holds_the_broken_loop():
    [answer] = manifest(ROOT)["03_selective"]["exercises"][4]["answers"]
    assert answer["stub"] == inspect.getsource(given.broken_iteration).replace("broken_", "").rstrip()


@torch.inference_mode()
def test_the_repaired_loop_gives_the_engines_tokens():
    outputs, *_ = given.ran(selective.iteration, "one of each")
    questions = [question for question, _ in given.BATCHES["one of each"]]
    served = given.engine().generate([chat(question) for question in questions])
    assert [out[: len(own.token_ids)] for out, own in zip(outputs, served)] == [
        own.token_ids[: given.LONGEST] for own in served
    ]
