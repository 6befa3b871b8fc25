"""Export as Parquet, by pyarrow: every part a row group, with a schema that is the same however few rows there are.

Imported by `export.py` alone, and only where Parquet is wanted. Lists of objects (messages, spans) are lists of Arrow's
JSON type, so that nothing is made up for a field that a message has not; what `datasets` is told of them stands in the
file's metadata, and it hands them out as objects again. A lone surrogate, which UTF-8 has not, becomes a question mark.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.exporting.forms import Form, Kind, columns
from gateway.message_fold import encode_json

pa: Final[Any] = importlib.import_module("pyarrow")
pq: Final[Any] = importlib.import_module("pyarrow.parquet")
"""The library has no types, so nothing of it is looked into."""
HUGGINGFACE: Final = b"huggingface"
"""The key under which `datasets` keeps what its features are."""
TYPES: Final[Mapping[Kind, tuple[Any, Any]]] = {
    Kind.TEXT: (pa.string(), {"dtype": "string", "_type": "Value"}),
    Kind.INT: (pa.int64(), {"dtype": "int64", "_type": "Value"}),
    Kind.FLOAT: (pa.float64(), {"dtype": "float64", "_type": "Value"}),
    Kind.BOOL: (pa.bool_(), {"dtype": "bool", "_type": "Value"}),
    Kind.INTS: (pa.list_(pa.int64()), {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}),
    Kind.FLOATS: (pa.list_(pa.float64()), {"feature": {"dtype": "float64", "_type": "Value"}, "_type": "List"}),
    Kind.OBJECTS: (pa.list_(pa.json_(pa.string())), {"feature": {"_type": "Json"}, "_type": "List"}),
}


class Parquet:
    """Parquet files of one form."""

    suffix = "parquet"

    def __init__(self, form: Form) -> None:
        self._form = form

    def write(self, path: Path, rows: Sequence[dict[str, Any]], *, is_text: bool) -> None:
        """One part, which is one row group."""
        kinds = columns(self._form, is_text=is_text)
        arrays = [_array(kind, [row[name] for row in rows]) for name, kind in kinds.items()]
        table = pa.Table.from_arrays(arrays, schema=_schema(kinds))
        pq.write_table(table, path, row_group_size=len(rows), compression="zstd")

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """One file of all parts, row group by row group."""
        schema = pq.read_schema(parts[0]) if parts else _schema(columns(self._form))
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for part in parts:
                writer.write_table(pq.read_table(part, schema=schema))


def _schema(kinds: Mapping[str, Kind]) -> Any:
    features = {name: TYPES[kind][1] for name, kind in kinds.items()}
    told = json.dumps({"info": {"features": features}}).encode()
    fields = [pa.field(name, TYPES[kind][0]) for name, kind in kinds.items()]
    return pa.schema(fields, metadata={HUGGINGFACE: told})


def _array(kind: Kind, values: list[Any]) -> Any:
    if kind is Kind.TEXT:
        return pa.array([None if value is None else _clean(value) for value in values], pa.string())
    if kind is not Kind.OBJECTS:
        return pa.array(values, TYPES[kind][0])
    offsets = [0]
    told: list[str] = []
    for value in values:
        told += [_clean(encode_json(item).decode()) for item in value]
        offsets.append(len(told))
    stored = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(told, pa.string()))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), stored)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
