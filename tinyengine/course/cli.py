"""`tinyengine start | grade | progress | build`. `register` adds them to the argparse of tinyengine/cli.py.

Each handler takes the parsed arguments and returns the exit code: 0 done (or all points), 1 not all points (or a stale
file), 2 a usage error, told in one sentence on stderr. The light imports come first; nbformat and rich only when used.
"""

import sys
from pathlib import Path


def register(subparsers) -> None:
    """Add the four commands; each sets `func`."""
    start = subparsers.add_parser("start", help="copy the exercises of lesson N to work/")
    start.add_argument("number", metavar="N", help="the number of the lesson: 2, 02 or 02_orca")
    start.add_argument("--fresh", action="store_true", help="make a fresh copy beside the one you have")
    start.set_defaults(func=guarded(run_start))

    grade = subparsers.add_parser("grade", help="grade your copy and print a scorecard; runs its code with your rights")
    grade.add_argument("number", metavar="N", help="the number of the lesson, or the path of a notebook")
    grade.add_argument("--json", metavar="PATH", type=Path, help="also write the scorecard as JSON")
    grade.add_argument("--junit", metavar="PATH", type=Path, help="also write it as JUnit XML")
    grade.add_argument("--timeout", metavar="SECONDS", type=float, help="limit per cell (default: the exercise's own)")
    grade.set_defaults(func=guarded(run_grade))

    progress = subparsers.add_parser("progress", help="the points of all exercises you have started")
    progress.set_defaults(func=guarded(run_progress))

    build = subparsers.add_parser("build", help="for authors: derive exercises/ from solutions/")
    what = build.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; exit 1 and name every stale file")
    what.add_argument(
        "--run",
        metavar="N",
        nargs="?",
        const="",
        help="first run lessons and solutions (of number N, or the notebook of that path) and store clean outputs",
    )
    build.set_defaults(func=guarded(run_build))


def guarded(handler):
    """Turn a CourseError into its sentence and exit code 2."""

    def run(args) -> int:
        from tinyengine.course.notebooks import CourseError

        try:
            return handler(args)
        except CourseError as error:
            print(error, file=sys.stderr)
            return 2
        except BrokenPipeError:
            raise  # `| head`: the caller ends quietly
        except OSError as error:  # a full disk, a folder without permission
            print(f"{error.filename or 'A file'} cannot be used ({error.strerror}): check the path.", file=sys.stderr)
            return 2

    return run


def run_start(args) -> int:
    from tinyengine.course.notebooks import find_root, short
    from tinyengine.course.work import start

    root = find_root()
    path, new = start(args.number, root, fresh=args.fresh)
    here = short(path, root)
    if new:
        graded = here if args.fresh else args.number  # a number means the first copy
        print(f"Your copy is {here}: open it in JupyterLab, then run `tinyengine grade {graded}`.")
    else:
        print(
            f"{here} is there already and was left as it is: `tinyengine start {args.number} --fresh` writes a fresh "
            "copy beside it."
        )
    return 0


def run_grade(args) -> int:
    from tinyengine.course.grader import grade
    from tinyengine.course.notebooks import CourseError, find_root, write, write_json
    from tinyengine.course.report import junit, print_scorecard
    from tinyengine.course.work import locate, remember

    if args.timeout is not None and not args.timeout > 0:
        raise CourseError(f"--timeout is {args.timeout:g}: give it more than 0 seconds.")
    root = find_root()
    path, others = locate(args.number, root)
    saved = path.stat().st_mtime
    card = grade(path, root, args.timeout)
    card["messages"] += [f"{other} is graded by its path: tinyengine grade {other}" for other in others]
    remember(card, path, root)
    print_scorecard(card, saved)
    if args.json:
        write_json(args.json, card)
    if args.junit:
        write(args.junit, junit(card))
    return 0 if card["points"] == card["max_points"] else 1


def run_progress(args) -> int:
    from tinyengine.course.notebooks import find_root
    from tinyengine.course.report import print_progress
    from tinyengine.course.work import progress

    rows = progress(find_root())
    if rows:
        print_progress(rows)
    else:
        print("Nothing is started yet: `tinyengine start 2` copies the first exercises to work/.")
    return 0


def run_build(args) -> int:
    from tinyengine.course.builder import build, run_authored, stale
    from tinyengine.course.notebooks import find_root, short

    root = find_root()
    if args.check:
        sentences = stale(root)
        print("\n".join(sentences) or "exercises/ is what solutions/ gives.")
        return 1 if sentences else 0
    failed = False
    if args.run is not None:
        for path, trouble in run_authored(root, args.run):
            print(
                f"{short(path, root)} was not stored: {trouble}." if trouble else f"{short(path, root)} was run.",
                flush=True,
            )
            failed = failed or bool(trouble)
    for path in build(root):
        print(f"{short(path, root)} was written.")
    return 1 if failed else 0
