"""YAML files, read as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.basics.packages import require
from penstock.errors import BadSetting

_DEEPEST = 20


def read_yaml(path: Path, text: str) -> Any:
    """Read one document: dicts, lists, text and None."""
    require(f"{path.name}: YAML", "runs", "yaml")
    import yaml as untyped

    yaml: Any = untyped
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise BadSetting(f"{path}: *{event.anchor}: write out what it stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise BadSetting(f"{path}: more than {_DEEPEST} levels deep")
        return _plain(f"{path}: ", yaml.compose(text, yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise BadSetting(f"{path}:{mark.line + 1 if mark else 1}: no YAML: {problem}") from None


def _plain(where: str, node: Any) -> Any:
    import yaml

    if node is None or isinstance(node, yaml.ScalarNode):
        return None if node is None or node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(f"{where}[{i}]", part) for i, part in enumerate(node.value)]
    tree: dict[str, Any] = {}
    for key, value in node.value:
        at = where if where.endswith(" ") else f"{where}."
        if not isinstance(key, yaml.ScalarNode):
            raise BadSetting(f"{where.removesuffix(': ')}: a key must be a word")
        if key.value in tree:
            raise BadSetting(f"{at}{key.value}: it stands there twice")
        tree[key.value] = _plain(f"{at}{key.value}", value)
    return tree
