"""Prints the statement coverage of the package, using only the standard library."""
import ast
import pathlib
import sys
import unittest

sys.path.insert(0, ".")
FILE = str(pathlib.Path("shop/__init__.py").resolve())
executed_lines = set()


def tracer(frame, event, _):
    if frame.f_code.co_filename == FILE:
        executed_lines.add(frame.f_lineno)
    return tracer


sys.settrace(tracer)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.discover("tests"))
sys.settrace(None)

tree = ast.parse(pathlib.Path(FILE).read_text())
lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, ast.Expr)}
covered = len(lines & executed_lines)
print(f"TOTAL {covered} of {len(lines)} statements, {100 * covered // len(lines)}%")
sys.exit(not result.wasSuccessful())
