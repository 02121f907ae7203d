"""LLVM does not survive a KeyboardInterrupt: the first steps of a process, which compile loops, hold them off."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tinyengine import Engine, SamplingParams, load_model
from tinyengine.model.untrained import save_random_model

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8]]
CONFIG = dict(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.3,
)
PROGRAM = """
import signal, sys
from tinyengine import Engine, SamplingParams, load_model

engine = Engine(load_model(sys.argv[1], device="cpu"), num_slots=128)
for prompt in {prompts}:
    engine.add_request(prompt, SamplingParams(max_tokens=6, ignore_eos=True))
interrupts, done = 0, False
signal.signal(signal.SIGINT, signal.default_int_handler)
while not done:
    try:
        if interrupts == 0:
            print("ready", flush=True)
        while engine.has_unfinished():
            engine.step()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        done = True
    except KeyboardInterrupt:
        interrupts += 1
assert interrupts > 0
print([output.token_ids for output in engine.outputs.values()])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to a child alone")
@pytest.mark.parametrize("every", [0.011, 0.07])
def test_interrupts_while_loops_are_compiled(tmp_path, every):
    pytest.importorskip("numba", reason="numba is not installed: pip install numba")
    save_random_model(tmp_path / "model", **CONFIG)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    program = PROGRAM.format(prompts=PROMPTS)
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    until = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < until:
        process.send_signal(signal.SIGINT)
        time.sleep(every)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, f"it ended with {process.returncode}"

    engine = Engine(load_model(tmp_path / "model", device="cpu"), fast=False, num_slots=128)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    assert said == f"{[output.token_ids for output in engine.generate(PROMPTS, params)]}\n"
