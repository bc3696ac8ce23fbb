"""Reads one JSON string per line, and parses it as YAML with libyaml. Prints [tree, ...] or {"error": ...} for each.

A scalar is {"plain": text} or {"quoted": text}, a list is {"list": [...]}, and a map is {"map": [[key, value], ...]}. "unusable" is
printed for a text that cannot be compared: Muster rejects it on purpose, or PyYAML rejects it although Psych accepts it.
"""
import json
import sys

import yaml


class Unusable(Exception):
    pass


def describe(node, open_nodes):
    if id(node) in open_nodes:
        raise Unusable
    inner = open_nodes | {id(node)}
    if isinstance(node, yaml.ScalarNode):
        return {"quoted" if node.style else "plain": node.value}
    if isinstance(node, yaml.SequenceNode):
        return {"list": [describe(item, inner) for item in node.value]}
    if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
        raise Unusable
    return {"map": [[describe(key, inner), describe(value, inner)] for key, value in node.value]}


for line in sys.stdin:
    try:
        nodes = list(yaml.compose_all(json.loads(line), Loader=yaml.CLoader))
        result = [describe(node, frozenset()) for node in nodes]
    except Unusable:
        result = "unusable"
    except yaml.composer.ComposerError as error:
        # Psych allows duplicate anchors, but PyYAML does not.
        is_duplicate_anchor = "duplicate anchor" in str(error)
        result = "unusable" if is_duplicate_anchor else {"error": f"{error.context}; {error.problem}"}
    except yaml.YAMLError as error:
        result = {"error": f"{getattr(error, 'context', None)}; {getattr(error, 'problem', None)}"}
    print(json.dumps(result))
