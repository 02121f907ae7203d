"""Jobs drawn one by one, and trace files."""

from itertools import islice
from statistics import median

import pytest

from tinyengine.request import Slo
from tinyengine.workload import LENGTHS, read_csv, stream

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


@pytest.mark.parametrize("name", LENGTHS)
def test_a_stream_has_the_published_lengths_and_the_rate(name):
    jobs = list(stream(name, rate=5.0, requests=4000))
    published = LENGTHS[name]
    assert median(job.prompt for job in jobs) == pytest.approx(published.prompt[0], rel=0.07)
    assert median(job.output for job in jobs) == pytest.approx(published.output[0], rel=0.07)
    assert max(job.prompt + job.output for job in jobs) <= published.limit
    assert jobs[-1].arrival == pytest.approx(4000 / 5, rel=0.05)


def test_a_stream_has_the_same_requests_at_every_rate_and_others_for_another_seed():
    slow, fast = list(stream(rate=1.0, requests=50)), list(stream(rate=2.0, requests=50))
    assert [job[1:] for job in slow] == [job[1:] for job in fast]
    assert [job.arrival for job in fast] == [job.arrival / 2 for job in slow]
    assert [job[1:] for job in stream(requests=50, seed=1)] != [job[1:] for job in slow]


def test_a_stream_has_no_end_and_carries_the_promise():
    promise = Slo(tbt=0.1)
    assert all(job.slo == promise for job in islice(stream(slo=promise), 100))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="rate is"):
        stream(rate=rate)
    with pytest.raises(ValueError, match="'lmsys'"):
        stream("lmsys")


def test_the_azure_columns_are_read_as_they_are(tmp_path):
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    path.write_text(AZURE)
    jobs = list(read_csv(path))
    assert [job[1:3] for job in jobs] == [(374, 44), (396, 109), (879, 55)]
    assert [job.arrival for job in jobs] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)


def test_columns_may_have_plain_names(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("output,prompt,arrival\n3,9,10\n1,7,11.5\n")
    assert [tuple(job[:3]) for job in read_csv(path)] == [(0.0, 9, 3), (1.5, 7, 1)]


@pytest.mark.parametrize(
    "times", [("0", "1.5"), ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.509930+00:00"), ("7e2", "701.5")]
)
def test_times_are_dates_or_seconds(tmp_path, times):
    path = tmp_path / "trace.csv"
    path.write_text("GeneratedTokens,TIMESTAMP,ContextTokens,more\n" + "".join(f"3,{time},9,x\n" for time in times))
    jobs = list(read_csv(path))
    assert [job.arrival for job in jobs] == pytest.approx([0.0, 1.5], abs=1e-6)
    assert {job[1:3] for job in jobs} == {(9, 3)}


def test_rows_without_output_are_passed_over(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("﻿" + AZURE + "2023-11-16 18:15:52.0,100,0\n2023-11-16 18:15:53.0,100,1\n", encoding="utf-8")
    assert [job.output for job in read_csv(path)] == [44, 109, 55, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TIMESTAMP,ContextTokens\n1,2\n", "has the columns TIMESTAMP, ContextTokens: it needs arrival, "),
        ("", "is empty: it needs the columns arrival, prompt, output or TIMESTAMP, ContextTokens, GeneratedTokens"),
        (AZURE + "yesterday,3,4\n", "line 5: .*yesterday"),
        (AZURE + "2023-11-16 18:15:52.0,3.5,4\n", r"line 5: .*3\.5"),
        (AZURE + "2023-11-16 18:15:52.0,3\n", "line 5"),
        (AZURE + "2023-11-16 18:15:51.0,3,4\n", r"line 5: .*51\.0 is before the row above"),
    ],
)
def test_faults_in_a_file_name_their_row(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        list(read_csv(path))
