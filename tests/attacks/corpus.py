"""The attack corpus: adversarial inputs, each with the verdict to reach.

The data are copied as they are. `$REPEAT(x,n)` is expanded here; what `$CURRENT` stands for is
known to whoever plays the hostile end of the stream.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "data" / "corpus.jsonl"

_REPEAT = re.compile(r"\$REPEAT\((.+?),(\d+)\)")


@dataclass(frozen=True)
class Row:
    """One attack, or a harmless look-alike."""

    id: str
    area: str
    tool: str
    """`helper` for frames of a hostile container, `http` and `mcp` for requests."""
    input: Any
    expected: str
    why: str
    """Says which fixtures the row needs, too."""
    source: str
    policy: str | None = None

    @property
    def verdict(self) -> str:
        """`deny`, `error`, `contained` or `allow`: what decides."""
        return self.expected.split()[0].rstrip(":")

    @property
    def words(self) -> str:
        """What comes after the verdict."""
        return self.expected.partition(": ")[2]

    @property
    def raw(self) -> str:
        """The input as the JSON text that a model sends."""
        text = self.input if isinstance(self.input, str) else json.dumps(self.input)
        return _REPEAT.sub(lambda found: found[1] * int(found[2]), text)

    @property
    def command(self) -> str:
        """The command of a row for `bash`."""
        command: str = json.loads(self.raw)["command"]
        return command


def rows(areas: Iterable[str] | None = None) -> list[Row]:
    """All rows, or those of some areas."""
    wanted = None if areas is None else set(areas)
    with CORPUS.open(encoding="utf-8") as lines:
        everything = [Row(**json.loads(line)) for line in lines]
    return [row for row in everything if wanted is None or row.area in wanted]


def row(id: str) -> Row:
    """One row."""
    (found,) = (row for row in rows() if row.id == id)
    return found
