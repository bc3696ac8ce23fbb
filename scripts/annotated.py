"""Finds the test functions of Rust files, for scripts that compare documents with tests.

Only functions that `cargo test` runs count: functions with `#[test]` or `#[tokio::test]` and without `#[ignore]`, and functions in a call of
a macro of the same file that adds `#[test]` to each of them.
"""
import pathlib
import re

SKIPPED = re.compile(r"(?:\s+|//[^\n]*\n)*")
START = re.compile(r"^[ \t]*#\[(?:tokio::)?test\b[^\n]*", re.MULTILINE)
FUNCTION = re.compile(r"(?:pub(?:\([^)]*\))?\s+)?(?:async\s+)?fn\s+([A-Za-z_]\w*)")
MACRO = re.compile(r"^macro_rules!\s+(\w+)\s*\{", re.MULTILINE)


def end_of(text: str, opening: int) -> int:
    """Returns the index after the bracket that closes the one at `opening`. Brackets in string literals are ignored."""
    pairs = {"[": "]", "{": "}", "(": ")"}
    opened, closed = text[opening], pairs[text[opening]]
    depth, index = 0, opening
    while index < len(text):
        if text[index] == '"':
            literal = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL).match(text, index)
            index = literal.end() if literal else len(text)
            continue
        depth += (text[index] == opened) - (text[index] == closed)
        index += 1
        if depth == 0:
            return index
    return len(text)


def attributes_before(text: str, index: int) -> str:
    """Returns the attributes directly above the line at `index`."""
    lines = text[:index].split("\n")[:-1]
    first = len(lines)
    while first and lines[first - 1].strip().startswith(("#[", "//")):
        first -= 1
    return "\n".join(lines[first:])


def in_macros(text: str) -> set[str]:
    """Returns the functions in calls of macros that turn them into tests."""
    found: set[str] = set()
    for macro in MACRO.finditer(text):
        body = text[macro.end() - 1 : end_of(text, macro.end() - 1)]
        if not re.search(r"#\[(?:tokio::)?test\b[^\n]*\]\s*(?:async\s+)?fn\s+\$", body):
            continue
        for call in re.finditer(rf"^{macro[1]}!\s*\{{", text, re.MULTILINE):
            inside = text[call.end() - 1 : end_of(text, call.end() - 1)]
            found |= set(re.findall(r"^\s*fn\s+(\w+)", inside, re.MULTILINE))
    return found


def tests_in(text: str) -> set[str]:
    """Returns the names of the test functions in the text of a file."""
    found = in_macros(text)
    for start in START.finditer(text):
        above = attributes_before(text, start.start())
        index = start.start() + start[0].index("#[")
        attributes = above
        while text.startswith("#[", index):
            end = end_of(text, index + 1)
            attributes += text[index:end]
            index = SKIPPED.match(text, end).end()
        function = FUNCTION.match(text, index)
        if function and "#[ignore" not in attributes:
            found.add(function[1])
    return found


def tests_of(file: pathlib.Path) -> set[str]:
    """Returns the names of the test functions of a file."""
    return tests_in(file.read_text())
