"""The command line: `tinyengine demo`, `generate`, `bench`, and the commands of the course.

A command imports what it needs when it runs, here and in the cli.py of each room: `--help` waits for no torch.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from tinyengine.bench import BENCHMARKS
from tinyengine.workload import WORKLOADS

# What the embedded model was trained on, with a question of each kind.
QUESTIONS = {
    "capitals": "What is the capital of France?",
    "sums": "What is 23 + 45?",
    "counting": "Count from 7 to 31.",
    "look-ups": "Mia: fox. Leo: owl. Ann: cat. Leo?",
    "facts": "What is the opposite of hot?",
    "greetings": "Say hello to Mia.",
    "repeating": "Repeat the word river.",
    "stories": "Tell me a short story about a fox.",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 fine, 1 the answer is no, 2 it was asked wrongly, 141 its reader
    has left (`| head`): 128 + SIGPIPE, which is what a shell makes of it."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        check_outputs(args)
        code = args.func(args) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit would raise again
        return 141
    except (ValueError, OSError) as error:
        print(f"tinyengine: {error}", file=sys.stderr)
        return 2


def build_parser() -> argparse.ArgumentParser:
    from tinyengine.course import cli as course
    from tinyengine.simulate import cli as simulate
    from tinyengine.verify import cli as verify

    parser = argparse.ArgumentParser(prog="tinyengine", description="A small LLM serving engine, and its course.")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_demo(commands)
    _add_generate(commands)
    _add_bench(commands)
    verify.register(commands)
    simulate.register(commands)
    course.register(commands)
    return parser


def _add_demo(commands):
    demo = commands.add_parser("demo", help="replay one workload through every stage and print the scoreboard")
    demo.add_argument("--workload", default="course", help=f"one of {', '.join(WORKLOADS)} (default: course)")
    demo.add_argument("--stages", help="names with commas between them (default: all)")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--model", default="tiny", help='"tiny", a folder, or a hub name')
    demo.add_argument("--json", type=Path, metavar="PATH", help="write the scoreboard there")
    demo.add_argument("--html", type=Path, metavar="PATH", help="write the timeline there, as one page")
    demo.set_defaults(func=_demo, outputs=("json", "html"))


def _add_generate(commands):
    generate = commands.add_parser(
        "generate",
        help="answer one prompt, token by token (--help: what the embedded model can be asked)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The embedded model is very small. The kinds of questions that it knows:\n\n"
        + "\n".join(f"  {kind:<10} {example}" for kind, example in QUESTIONS.items()),
    )
    generate.add_argument("prompt")
    generate.add_argument("--model", default="tiny", help='"tiny", a folder, or a hub name')
    generate.add_argument("--max-tokens", type=int, default=256)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--top-p", type=float, default=1.0)
    generate.add_argument("--seed", type=int)
    generate.add_argument("--raw", action="store_true", help="the prompt as it is, without the model's chat template")
    generate.set_defaults(func=_generate)


def _add_bench(commands):
    bench = commands.add_parser("bench", help="measure what is claimed of speed")
    bench.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    bench.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    bench.add_argument("--threads", type=int, metavar="N", help="of torch, on a CPU (default: as torch chooses)")
    bench.add_argument("--tests", action="store_true", help="of usage: run `make test` too, which takes minutes")
    bench.add_argument("--json", type=Path, metavar="PATH", help="write results, machine, versions and commit there")
    bench.set_defaults(func=_bench, outputs=("json",))


def check_outputs(args: argparse.Namespace):
    """Raises ValueError for a file that could not be written after the run, so that no run is lost. The command names
    such options as `outputs`."""
    for option in getattr(args, "outputs", ()):
        path = getattr(args, option)
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"--{option} is {path}, but that is a folder: give the path of a file in it")
        if not path.parent.is_dir():
            raise ValueError(f"--{option} is {path}, but there is no folder {path.parent}: make it first")


def _demo(args) -> int:
    from tinyengine import demo

    stages = None if args.stages is None else args.stages.split(",")
    board = demo.run(args.workload, stages, args.seed, args.model)
    demo.show(board)
    if args.json:
        args.json.write_text(json.dumps(board.to_json(), indent=2) + "\n", encoding="utf-8")
    if args.html:
        board.write_html(args.html)
        print(f"timeline: {args.html}")
    return 0 if board.all_exact else 1


def _bench(args) -> int:
    from tinyengine import bench

    names = args.names or (bench.ON_CUDA if args.device == "cuda" else BENCHMARKS)
    bench.run(names, args.device, args.json, args.threads, args.tests)
    return 0


def _generate(args) -> int:
    if not args.prompt.strip():
        raise ValueError(f"the prompt is {args.prompt!r}, but must have a character that is no space: ask something")
    from tinyengine import Engine, SamplingParams, load_model

    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, top_p=args.top_p, seed=args.seed)
    model = load_model(args.model)
    prompt = args.prompt
    if model.tokenizer is None:
        raise ValueError(f"model {args.model!r} has no tokenizer, so it cannot read a prompt")
    if not args.raw:
        messages = [{"role": "user", "content": prompt}]
        prompt = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    is_empty = True
    for token in Engine(model).stream(prompt, params):
        print(token.text, end="", flush=True)
        is_empty = is_empty and not token.text.strip()
    print()
    if is_empty:
        about = "; `tinyengine generate --help` lists what it can be asked" if args.model == "tiny" else ""
        print(f"tinyengine: the model's answer is empty{about}", file=sys.stderr)
    return 0
