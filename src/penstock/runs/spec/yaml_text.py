"""YAML files, read as text with the line of each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.basics.packages import require
from penstock.errors import BadSetting

_DEEPEST = 20


class YamlText(msgspec.Struct, frozen=True):
    """One file."""

    path: Path  # where it lies
    tree: Any  # dicts, lists, text and None
    lines: dict[str, int]  # line, from 1, of each part, by its path as msgspec writes it: ``$.groups[0].grid``

    def where(self, at: str) -> str:
        """Return file and line of a part, or of the nearest part around it that has one, as errors begin."""
        while at not in self.lines:
            at = at[: max(at.rfind("."), at.rfind("["))]
        return f"{self.path}:{self.lines[at]}"

    def where_key(self, at: str, key: str) -> str:
        """Return file, line and name of a key of a part, as errors begin."""
        return f"{self.where(f'{at}.{key}')}: {key}"


def read_yaml(path: Path, text: str) -> YamlText:
    """Read one document."""
    require(f"{path.name}: YAML", "runs", "yaml")
    import yaml as untyped

    yaml: Any = untyped
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            where = f"{path}:{event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent):
                raise BadSetting(f"{where}: *{event.anchor}: write out what it stands for")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise BadSetting(f"{where}: more than {_DEEPEST} levels deep")
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise BadSetting(f"{path}:{mark.line + 1 if mark else 1}: no YAML: {problem}") from None
    lines = {"$": 1}
    return YamlText(path, _plain(path, node, "$", lines), lines)


def _plain(path: Path, node: Any, at: str, lines: dict[str, int]) -> Any:
    import yaml

    line = lines[at] = node.start_mark.line + 1 if node else 1
    if node is None or isinstance(node, yaml.ScalarNode):
        return None if node is None or node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, part, f"{at}[{i}]", lines) for i, part in enumerate(node.value)]
    tree: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise BadSetting(f"{path}:{line}: a key must be a word")
        if key.value in tree:
            raise BadSetting(f"{path}:{line}: {key.value} stands here a second time")
        tree[key.value] = _plain(path, value, f"{at}.{key.value}", lines)
        lines[f"{at}.{key.value}"] = line
    return tree
