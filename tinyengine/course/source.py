"""show_source and show_diff: a lesson shows the package's own code as a cell output, never as a copy of it.

The output is the same on every machine (no absolute path, no line number of the file), so nbval can compare it: a
changed engine turns the lesson red until it is run again.
"""

import ast
import difflib
import inspect
import linecache
import sys
import textwrap

from tinyengine.course.display import publish


def show_source(obj, *more) -> None:
    """Show the code of classes, functions, methods or modules, each under the name of its file."""
    objects = (obj, *more)
    plain = "\n\n".join(f"# {caption(o)}\n{source_of(o)}" for o in objects)
    markdown = "\n\n".join(f"`{caption(o)}`\n\n{fence('python', source_of(o))}" for o in objects)
    publish(plain, **{"text/markdown": markdown})


def show_diff(a, b, context: int = 1) -> None:
    """Show what changes from `a` to `b`: the changed lines, with `context` unchanged lines around them."""
    changes = diff_lines(source_of(a), source_of(b), context)
    title = f"{caption(a)} → {caption(b)}"
    if not changes:
        publish(f"{title}: no difference", **{"text/markdown": f"`{title}`: no difference"})
        return
    diff = "\n".join(changes)
    publish(f"{title}\n{diff}", **{"text/markdown": f"`{title}`\n\n{fence('diff', diff)}"})


def source_of(obj) -> str:
    """The code of `obj`, dedented, as it stands in the file now."""
    if isinstance(obj, property):
        obj = obj.fget
    target = inspect.unwrap(obj) if callable(obj) else obj
    linecache.checkcache()  # a kernel that lives longer than an edit of the file must not show old lines
    try:
        code = inspect.getsource(target)
    except (TypeError, OSError):
        code = class_in_a_cell(target)
    if not code:
        raise ValueError(
            f"show_source got {obj!r}, which has no Python source: give it a class, a function or a method."
        )
    return textwrap.dedent(code).rstrip()


def class_in_a_cell(cls) -> str:
    """The code of a class typed in a notebook: inspect knows no file for it, and its methods know their cell."""
    for member in vars(cls).values() if inspect.isclass(cls) else ():
        if inspect.isfunction(member):
            cell = "".join(linecache.getlines(member.__code__.co_filename))
            for node in ast.walk(ast.parse(cell)):
                if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                    return ast.get_source_segment(cell, node)
    return ""


def caption(obj) -> str:
    """`tinyengine/scheduler.py: Orca.schedule`; no folder outside the package, so every machine prints the same."""
    if isinstance(obj, property):
        obj = obj.fget
    if inspect.ismodule(obj):
        return file_of(obj.__name__)
    return f"{file_of(obj.__module__)}: {obj.__qualname__.replace('<locals>.', '')}"


def file_of(module_name: str) -> str:
    """A module's file as a path from the checkout's root; a class typed in a cell belongs to `this notebook`."""
    if module_name == "__main__":
        return "this notebook"
    path = module_name.replace(".", "/")
    is_package = hasattr(sys.modules.get(module_name), "__path__")
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def diff_lines(a: str, b: str, context: int) -> list[str]:
    """A unified diff without its file header and without line numbers: `...` stands between two places."""
    lines = list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=context))[2:]
    lines = ["  ..." if line.startswith("@@") else line for line in lines]
    return lines[1:]  # the first hunk needs no separator before it


def fence(language: str, code: str) -> str:
    """A Markdown code block whose fence is longer than any run of backticks inside it."""
    ticks = "```"
    while ticks in code:
        ticks += "`"
    return f"{ticks}{language}\n{code}\n{ticks}"
