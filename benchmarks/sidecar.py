"""CPU seconds and memory of columns by this package, by DuckDB and by pyarrow; see docs/scale.md.

    pip install duckdb
    python -m benchmarks.scale /mnt/space --records 300000 --keep --only
    python -m benchmarks.sidecar /mnt/space/scale/records.jsonl

Each way runs in a separate process, on one thread, and writes Parquet. DuckDB and pyarrow do less than is needed: they
validate no line, and DuckDB hashes every question as if it had text and references alone.

Why the sidecar is decoded line by line: 300,000 records (644 MiB), beside other work, gave

    msgspec, and Parquet by pyarrow (in use)    4.7 CPU s   276 MiB   adds 1 MiB to the installation
    DuckDB 2.0: byte offsets, fields, hashes    3.6 CPU s   478 MiB   adds 69 MiB
    pyarrow.json: fields alone                  2.2 CPU s   751 MiB

A build happens once for each log, and DuckDB would save a quarter of it; `fit` reads finished columns either way (about
5 CPU s here). The losses weigh more:

- Validation. Of 15 malformed lines that `Record` refuses, `from_json` of DuckDB accepted 12 silently: a number for an
  id, no id, `"correct": 2`, a score of `1e999` or without a reason. They became texts, nulls and infinities.
  `from_json_strict` refuses every record that leaves out a field with a default. The types would have to be checked
  once more, in SQL or by msgspec.
- Error lines. An error of DuckDB names a byte of the value or a line of the CSV reader, not the field and the rule.
- Byte offsets. DuckDB has none for JSON. They come from reading the log as a CSV file of one column and adding up the
  lengths of its lines; memory grows with the longest line that is allowed (478 MiB for lines of 4 MB, 831 MiB for
  100 MB). pyarrow.json has none, and no type for an object with any keys, such as `options`.
- Fingerprints. `str.strip` and the canonical JSON of options, slots and tools have no equal in SQL, so records with
  these would be hashed in Python as before.
- Lines of code. The decoder, the columns in memory and the process pool are about 190 lines; the SQL, its checks and
  the path for the records above would be about 100. pyarrow stays, because question files and imports may be Parquet.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from calibrate.data.column_build import current_parts, read_header
from calibrate.data.progress import silent

__all__ = ["main"]

KEYS = ("semantic_entropy", "discrete_semantic_entropy")
LONGEST_LINE = 4_000_000
"""Bytes; DuckDB allocates several times as much."""
_QUERY = """
copy (
  with lines as (
    select line, octet_length(encode(line)) + 1 as bytes from read_csv($log, columns = {line: 'VARCHAR'},
    header = false, delim = '\\x01', quote = '', escape = '', max_line_size = $longest, strict_mode = false)
  ), places as (
    select cast(sum(bytes) over (rows between unbounded preceding and current row) - bytes as bigint) as byte, line
    from lines offset 1
  ), decoded as (select byte, from_json(line, $fields) as r from places)
  select byte, r.id, r."group", r.turns, r.correct, r.drawn.primary.finish_reason, r.drawn.problem, r.scores,
    sha256(r.id), sha256(trim(r.question)), sha256(r.question || chr(0) || r.drawn.primary.text),
    sha256('[' || to_json(r.id) || ',' || to_json('[' || to_json(trim(r.question)) || ',null,null]') || ']'),
    sha256('{"group":' || coalesce(to_json(r."group"), 'null') || ',"id":' || to_json(r.id) || ',"options":null,'
      || '"question":' || to_json(r.question) || ',"references":' || to_json(r."references") || '}')
  from decoded
) to '$out' (format parquet, compression zstd)
"""


def ours(log: Path, folder: Path) -> None:
    """Build the columns of a link to the log."""
    link = folder / "records.jsonl"
    link.symlink_to(log.resolve())
    header, first = read_header(link)
    current_parts(link, first, header, lambda title: nullcontext(silent), workers=1)


def duckdb(log: Path, folder: Path) -> None:
    """Byte offsets, fields and hashes by DuckDB."""
    text, score = "VARCHAR", {"value": "DOUBLE", "reason": "VARCHAR"}
    fields = dict.fromkeys(("id", "question", "group", "turns"), text) | {"references": [text], "correct": "BOOLEAN"}
    drawn = {"primary": {"text": text, "finish_reason": text}, "problem": text}
    spelled = json.dumps({**fields, "drawn": drawn, "scores": dict.fromkeys(KEYS, score)})
    values = {"$log": f"'{log}'", "$longest": str(LONGEST_LINE), "$fields": f"'{spelled}'", "$out": str(folder / "d")}
    query = _QUERY
    for name, value in values.items():
        query = query.replace(name, value)
    connection: Any = import_module("duckdb").connect()
    connection.execute("set threads = 1")
    connection.execute(query)


def pyarrow(log: Path, folder: Path) -> None:
    """Fields by the JSON reader of pyarrow."""
    pa: Any = import_module("pyarrow")
    reader: Any = import_module("pyarrow.json")
    parquet: Any = import_module("pyarrow.parquet")
    text, score = pa.string(), pa.struct([("value", pa.float64()), ("reason", pa.string())])
    primary = pa.struct([("text", text), ("finish_reason", text)])
    fields = [("id", text), ("question", text), ("references", pa.list_(text)), ("group", text), ("turns", text)]
    fields += [("correct", pa.bool_()), ("drawn", pa.struct([("primary", primary), ("problem", text)]))]
    fields += [("scores", pa.struct([(key, score) for key in KEYS]))]
    parse = reader.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    with log.open("rb") as stream:
        stream.readline()
        batches = reader.open_json(stream, reader.ReadOptions(use_threads=False, block_size=1 << 24), parse)
        with parquet.ParquetWriter(folder / "p.parquet", batches.schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)


WAYS = {"ours": ours, "duckdb": duckdb, "pyarrow": pyarrow}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or run one way and print its row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--way", choices=WAYS)
    asked = parser.parse_args(arguments)
    if asked.way is None:
        print("| columns by | CPU s | MiB |\n|---|---|---|", flush=True)
        for way in WAYS:
            subprocess.run([sys.executable, "-m", "benchmarks.sidecar", str(asked.log), "--way", way], check=False)
        return
    with TemporaryDirectory(dir=asked.log.parent) as folder:
        start = time.process_time()
        WAYS[asked.way](asked.log, Path(folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    print(f"| {asked.way} | {time.process_time() - start:.1f} | {memory:,.0f} |")


if __name__ == "__main__":
    main()
