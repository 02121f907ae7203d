"""What a learner wrote, kept as a part of the learner's engine: work/engine/<name>.py, which can be imported alone."""

import ast
import symtable
from pathlib import Path
from typing import NamedTuple

from tinyengine.course.notebooks import write

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SIMPLE = ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom


class Statement(NamedTuple):
    """A top-level statement of a notebook, with the comment above it, and the global names in it."""

    source: str
    binds: set[str]
    uses: set[str]
    replaces: bool  # what stood above it under the names that it binds has no meaning any more


def needed(name: str, cells: list[str]) -> str:
    """The statements of these cells that `name` needs, in order: its own, and those that define what they use."""
    statements = [statement for cell in cells for statement in statements_of(cell)]
    chosen, open_names = set(), [name]
    while open_names:
        wanted = open_names.pop()
        for number in reversed(range(len(statements))):
            statement = statements[number]
            if wanted not in statement.binds and "*" not in statement.binds:
                continue
            if number not in chosen:
                chosen.add(number)
                open_names += statement.uses - {wanted}
            if statement.replaces and wanted in statement.binds:
                break
    sources = [only(statements[number].source, name, chosen, statements) for number in sorted(chosen)]
    return "\n\n".join(dict.fromkeys(sources)) + "\n"


def only(source: str, name: str, chosen: set[int], statements: list[Statement]) -> str:
    """An import of several names, cut to those that are used; any other statement as it is."""
    node = ast.parse(source).body[0]
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return source
    used = {name}.union(*(statements[number].uses for number in chosen))
    node.names = [alias for alias in node.names if bound(alias) in used | {"*"}]
    return ast.unparse(node)


def bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def statements_of(cell: str) -> list[Statement]:
    """The top-level statements of a cell, without its magics; none of a cell that is not Python."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in cell.splitlines()]
    try:
        body = ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in body:
        first = min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))])
        while first > 1 and lines[first - 2].startswith("#") and not lines[first - 2].startswith("# Given"):
            first -= 1
        found.append(statement("\n".join(lines[first - 1 : node.end_lineno]), node))
    return found


def statement(source: str, node: ast.stmt) -> Statement:
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    names = [symbol for symbol in table.get_symbols() if symbol.get_name() != "*"]
    binds = {s.get_name() for s in names if s.is_assigned() or s.is_imported() or s.is_namespace()}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        binds = {"*"}
    uses = {s.get_name() for s in names if s.is_referenced()}
    changed = set()
    for target in targets(node):  # `Mine.schedule = schedule` and `table["a"] = 1` belong to Mine and table
        while isinstance(target, ast.Attribute | ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            changed.add(target.id)
    if isinstance(node, ast.AugAssign):
        uses |= changed
    replaces = isinstance(node, DEFINITIONS) or (isinstance(node, SIMPLE) and not uses & (binds | changed))
    return Statement(source, binds | changed, uses.union(*map(inner, table.get_children())), replaces)


def targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def inner(table: symtable.SymbolTable) -> set[str]:
    """Global names in a function or class."""
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return own.union(*map(inner, table.get_children()))


def keep(name: str, source: str, folder: Path) -> Path:
    """Writes <name>.py. One that differs stays beside it, with a number: nothing that a learner wrote is lost."""
    path = folder / f"{name}.py"
    older = path.read_bytes() if path.is_file() else b""
    if older == source.encode():
        return path
    if older and older not in [copy.read_bytes() for copy in folder.glob(f"{name}_*.py")]:
        number = 1
        while True:
            try:
                with open(folder / f"{name}_{number}.py", "xb") as file:  # x: never overwrite, not even in a race
                    file.write(older)
                break
            except FileExistsError:
                number += 1
    write(path, source)
    return path
