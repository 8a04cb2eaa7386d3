"""Files are replaced whole, with the permissions they should have, and never in place of something else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from calibrate.data.records import exclusive, stream_records
from guardrail.errors import UsageError
from guardrail.files import atomic_write, open_sqlite, sqlite_path
from guardrail.judges.cache import PairCache
from guardrail.plain_json import canonical_json, sha256_hex
from integrations._agents.verdicts import VerdictStore

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("content", ["a\u00e9\n", b"a\xc3\xa9\n", [b"a", b"\xc3\xa9", b"\n"]])
def test_text_bytes_and_chunks_are_written_alike(tmp_path: Path, content: str | bytes | list[bytes]) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    atomic_write(target, content)
    assert target.read_bytes() == b"a\xc3\xa9\n"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    there: list[str] = []

    def chunks() -> Iterator[bytes]:
        yield b"new"
        there.extend(sorted(path.name for path in tmp_path.iterdir()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(target, chunks())
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    assert len(there) == 2
    assert there[0].startswith(".file.")
    assert there[0].endswith(".part")


def test_permissions_are_the_given_ones_or_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, requested in (("plain", None), ("secret", 0o600), ("shown", 0o644)):
            atomic_write(tmp_path / name, "text", mode=requested)
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("plain", "secret", "shown")] == [0o640, 0o600, 0o644]


def test_a_replaced_file_keeps_its_permissions_and_a_new_private_one_is_the_owners(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, private in (("plain", False), ("private", True)):
            atomic_write(tmp_path / name, "text", private=private)
        assert [mode(tmp_path / name) for name in ("plain", "private")] == [0o644, 0o600]
        (tmp_path / "plain").chmod(0o640)
        (tmp_path / "private").chmod(0o660)
        for name, private in (("plain", False), ("private", True)):
            atomic_write(tmp_path / name, "other", private=private)
        assert [mode(tmp_path / name) for name in ("plain", "private")] == [0o640, 0o660]
        open_sqlite(tmp_path / "new.sqlite").close()
        VerdictStore(tmp_path / "verdicts.sqlite")
        PairCache(tmp_path / "pairs.sqlite")
        assert {mode(path) for path in tmp_path.glob("*.sqlite*")} == {0o600}
    finally:
        os.umask(before)


def test_records_are_scored_with_the_permissions_of_their_source(tmp_path: Path) -> None:
    source = shutil.copy(GOLDEN / "records.jsonl", tmp_path / "records.jsonl")
    Path(source).chmod(0o600)
    stream_records(source, tmp_path / "scored.jsonl", lambda reader: (reader.header, reader))
    assert mode(tmp_path / "scored.jsonl") == 0o600
    (tmp_path / "scored.jsonl").chmod(0o640)
    stream_records(source, tmp_path / "scored.jsonl", lambda reader: (reader.header, reader))
    assert mode(tmp_path / "scored.jsonl") == 0o640


def test_the_copy_of_a_killed_rewrite_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from guardrail.files import atomic_write\n"
        "def parts():\n    yield b'half'\n    os._exit(9)\n"
        "atomic_write(Path(sys.argv[1]), parts())"
    )
    target = tmp_path / "records.jsonl"
    assert subprocess.run([sys.executable, "-c", code, str(target)], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    other = tmp_path / f".other{left.name.removeprefix('.records')}"
    other.write_text("of another file")
    with exclusive(target):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == [other]


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    modes: list[int] = []

    def chunks() -> Iterator[bytes]:
        modes.extend(mode(path) for path in tmp_path.iterdir())
        yield b"token"

    before = os.umask(0)
    try:
        atomic_write(tmp_path / "tokens", chunks(), mode=0o600)
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_what_is_not_a_file_stays(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, Path("/dev/null")):
        with pytest.raises(UsageError, match=f"{path} is not a regular file; refusing to overwrite it"):
            atomic_write(path, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert folder.is_dir()


def test_sqlite_waits_for_others_and_reaches_the_disk(tmp_path: Path) -> None:
    with closing(open_sqlite(tmp_path / "file.sqlite")) as connection:
        settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]  # 2 is FULL
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (30_000,)


def test_the_file_of_a_database_url() -> None:
    assert sqlite_path("sqlite:///reviews.db") == sqlite_path("reviews.db") == Path("reviews.db")
    assert sqlite_path("sqlite:////var/reviews.db") == Path("/var/reviews.db")
    assert sqlite_path("postgresql://host/name") is None


def test_canonical_json_has_one_text_for_equal_values() -> None:
    value = {"b": [1, "\u00e9"], "a": None}
    assert canonical_json(value) == '{"a":null,"b":[1,"\u00e9"]}'
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)
    assert canonical_json(value, compact=False, ascii_only=True) == '{"a": null, "b": [1, "\\u00e9"]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"), allow_nan=False)
    # The digest of the empty text, from FIPS 180-4's test vectors.
    assert sha256_hex("", 16) == "e3b0c44298fc1c14"
    assert sha256_hex("\u00e9") == sha256_hex(b"\xc3\xa9")


def test_a_long_name_leaves_room_for_the_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 240)
    atomic_write(target, "whole")
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]
