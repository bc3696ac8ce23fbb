"""Reads JSON strings, a line each, as YAML with libyaml; prints what each is: [tree, ...] or {"error": ...}.

A scalar is {"plain": text} or {"quoted": text}, a list {"list": [...]}, a map {"map": [[key, value], ...]}. "unusable" stands for a
text whose tree the other side refuses on purpose.
"""
import json
import sys

import yaml


class Unusable(Exception):
    pass


def shown(node, open_nodes):
    if id(node) in open_nodes:
        raise Unusable
    inner = open_nodes | {id(node)}
    if isinstance(node, yaml.ScalarNode):
        return {"quoted" if node.style else "plain": node.value}
    if isinstance(node, yaml.SequenceNode):
        return {"list": [shown(item, inner) for item in node.value]}
    if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
        raise Unusable
    return {"map": [[shown(key, inner), shown(value, inner)] for key, value in node.value]}


for line in sys.stdin:
    try:
        nodes = list(yaml.compose_all(json.loads(line), Loader=yaml.CLoader))
        answer = [shown(node, frozenset()) for node in nodes]
    except Unusable:
        answer = "unusable"
    except yaml.composer.ComposerError as error:
        # An anchor may be given again, as Psych allows; PyYAML does not.
        is_again = "duplicate anchor" in str(error)
        answer = "unusable" if is_again else {"error": f"{error.context}; {error.problem}"}
    except yaml.YAMLError as error:
        answer = {"error": f"{getattr(error, 'context', None)}; {getattr(error, 'problem', None)}"}
    print(json.dumps(answer))
