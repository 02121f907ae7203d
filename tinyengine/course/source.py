"""show_source and show_diff: a lesson shows the package's own code as a cell output, never as a copy of it.

The output is the same on every machine (no absolute path, no line number of the file), so nbval can compare it: a
changed engine turns the lesson red until it is run again.
"""

import ast
import difflib
import html
import inspect
import linecache
import sys
import textwrap

from tinyengine.course.display import publish

# A notebook that the reader has not run yet is not trusted: JupyterLab then drops style sheets and variables of the
# theme, and keeps plain colours. These can be read on white and on black alike.
CODE = {
    "Keyword": "bold #178a3c",
    "Operator.Word": "bold #178a3c",
    "Name.Function": "#2a7de1",
    "Name.Class": "#2a7de1",
    "Number": "#8b6bd0",
    "String": "#c2542d",
    "String.Doc": "#7a7a7a",
    "Comment": "italic #7a7a7a",
}
KEPT = "tinyengine_work_"  # the modules of a learner's parts: tinyengine.course.mine
CHANGES = {"-": "rgba(248,81,73,0.22)", "+": "rgba(46,160,67,0.22)"}  # red and green, over any background

# A long line scrolls: JupyterLab would break it inside a word.
BLOCK = (
    "white-space: pre; overflow-x: auto; word-break: normal; font-size: 13px; margin: 4px 0 16px; "
    "padding: 0 0 0 12px; border-left: 3px solid rgba(128,128,128,0.4)"
)


def show_source(obj, *more, without: tuple[str, ...] = (), fold: str = "") -> None:
    """Show the code of classes, functions, methods or modules, each under the name of its file.

    without: statements that mention one of these names are left out, and `...` stands in their place. fold: the line
    that stands for the code until the reader opens it.
    """
    names = (without,) if isinstance(without, str) else tuple(without)
    shown = [left_out(source_of(o), names) for o in (obj, *more)]
    met = {name for _, found in shown for name in found}
    if missing := [name for name in names if name not in met]:
        raise ValueError(f"show_source got without={missing[0]!r}, which no statement mentions: leave it out.")
    titles = [caption(o) + without_text(found) for o, (_, found) in zip((obj, *more), shown)]
    plain = "\n\n".join(f"# {title}\n{code}" for title, (code, _) in zip(titles, shown))
    rich = "\n".join(block(title, coloured(code)) for title, (code, _) in zip(titles, shown))
    if fold:
        rich = f"<details><summary>{html.escape(fold)}</summary>\n{rich}</details>"
    publish(plain, **{"text/html": rich})


def without_text(names: list[str]) -> str:
    return f", without: {', '.join(names)}" if names else ""


def left_out(code: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """The code with `...` for each run of whole statements that mention one of the names; and the names that it met."""
    lines, cuts, met = code.splitlines(), {}, set()
    for node in statements(ast.parse(code)) if names else ():
        if found := mentioned(node) & set(names):
            met |= found
            first, last = node.lineno - 1, node.end_lineno
            if decorators := getattr(node, "decorator_list", ()):
                first = decorators[0].lineno - 1
            while lines[first - 1].lstrip().startswith("#"):  # a comment above belongs to what it is about
                first -= 1
            cuts = dict.fromkeys(range(first, last), " " * node.col_offset + "...") | cuts  # the outer one is first
    kept = []
    for number, line in enumerate(lines):
        new = cuts.get(number, line)
        if not (number in cuts and number - 1 in cuts and kept[-1] == new):
            kept.append(new)
    return "\n".join(kept), [name for name in names if name in met]


def statements(tree: ast.AST):
    """Every statement inside the outermost definition; of a compound statement, its parts come after it."""
    for outermost in tree.body:
        yield from (node for node in ast.walk(outermost) if isinstance(node, ast.stmt) and node is not outermost)


def mentioned(statement: ast.stmt) -> set[str]:
    """The names in a statement, and for one that holds others (if, for, def) the names in its head only."""
    found, todo = set(), [statement]
    while todo:
        node = todo.pop()
        found |= {getattr(node, field) for field in ("id", "attr", "arg", "name") if hasattr(node, field)}
        todo += (child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.stmt, ast.arguments)))
    return found


def show_diff(a, b, context: int = 1, docs: bool = True) -> None:
    """Show what changes from `a` to `b`: the changed lines, with `context` unchanged lines around them.

    docs: False leaves the docstrings out.
    """
    changes = diff_lines(*(source_of(x) if docs else without_doc(source_of(x)) for x in (a, b)), context)
    title = f"{caption(a)} → {caption(b)}"
    if not changes:
        publish(f"{title}: no difference", **{"text/markdown": f"`{title}`: no difference"})
        return
    plain = "\n".join([title, *changes])
    lines = "".join(map(coloured_change, changes))
    whole = f'<span style="display: inline-block; min-width: 100%">{lines}</span>'  # as wide as its longest line
    publish(plain, **{"text/html": block(title, whole)})


def without_doc(code: str) -> str:
    """The code of a function or class without its own docstring."""
    lines, first = code.splitlines(), ast.parse(code).body[0].body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(lines)


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
    """A module's file as a path from the checkout's root; a class typed in a cell belongs to `this notebook`,
    and a part of the learner's engine to its file."""
    if module_name == "__main__":
        return "this notebook"
    if module_name.startswith(KEPT):
        return f"work/engine/{module_name.removeprefix(KEPT)}.py"
    path = module_name.replace(".", "/")
    is_package = hasattr(sys.modules.get(module_name), "__path__")
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def diff_lines(a: str, b: str, context: int) -> list[str]:
    """A unified diff without its file header and without line numbers: `...` stands between two places."""
    lines = list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=context))[2:]
    lines = ["  ..." if line.startswith("@@") else line for line in lines]
    return lines[1:]  # the first hunk needs no separator before it


def block(title: str, code: str) -> str:
    """HTML of some code under its title."""
    return f'<div><code>{html.escape(title)}</code></div>\n<pre style="{BLOCK}">{code}</pre>'


def coloured(code: str) -> str:
    """Python as HTML, its colours in the elements themselves."""
    from pygments import highlight, token
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer
    from pygments.style import Style

    styles = {token.string_to_tokentype(name): colour for name, colour in CODE.items()}
    formatter = HtmlFormatter(style=type("Colours", (Style,), {"styles": styles}), noclasses=True, nowrap=True)
    return highlight(code, PythonLexer(stripnl=False), formatter).rstrip("\n")


def coloured_change(line: str) -> str:
    """A line of a diff as HTML. Its end is inside, so that it stays a line of its own where styles are dropped."""
    colour = CHANGES.get(line[:1])
    style = "display: block" + (f"; background-color: {colour}" if colour else "")
    return f'<span style="{style}">{html.escape(line)}\n</span>'
