"""JSON fields: the leaves of a document, and whether another document supports them. No I/O.

A document is a value of `guardrail.judges.json_value.read_json`, with exact numbers.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from ..errors import UsageError
from ..judges.base import Judge
from ..judges.json_value import canonical_value, read_json
from ..judges.registry import make_judge
from ..judges.tool_call import read_calls
from ..types import Bindings, Sample
from .paths import Fields, escaped, leaf_fields, schema_of, unescaped
from .spec import MOST_ITEMS, ItemsSpec

Document: TypeAlias = Any
MOST_COMPARED = 100
"""Different entries of a list that a judge compares with each other; entries of a longer list are not measured. A judge
is asked about every two of them, in the answer and in each sample: 1,000 entries are ten million questions."""


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""The value of an optional field that an answer leaves out. None is a value: null is a claim."""


@dataclass(frozen=True, slots=True)
class _KeyedEntry:
    """A step into a list of objects: to the entry whose key field has this value."""

    field: str
    key: str


Address: TypeAlias = tuple[str | _KeyedEntry, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An item of a document.

    Attributes:
        path: JSON pointer in the document.
        pattern: The path with "*" for each entry of a list; the field's judge is found by it.
        value: The value there, or `ABSENT`.
        address: Steps to the same field in another document; of an entry of a list, to its list.
        nth: Of a list of scalars: how many entries up to and with this one equal it, from 1. 0 otherwise.
        unmeasured: Why nothing is compared with it; empty where it is compared.
    """

    path: str
    pattern: str
    value: Document
    address: Address
    nth: int = 0
    unmeasured: str = ""


# -- Documents -----------------------------------------------------------------------------------------------------


def document_of(answer: Sample, call: str | None) -> Document:
    """The document of an answer: the text as JSON, or the arguments of its one tool call.

    Args:
        answer: The answer.
        call: Name of the tool that it must call; None for an answer whose text is the document.

    Raises:
        ValueError: The answer is not JSON, has a field twice or more than `MOST_ITEMS` values, makes several calls, or
            calls another tool.
    """
    if [made.name for made in answer.tool_calls] != ([] if call is None else [call]):
        raise ValueError(f"expected {call or 'no tool call'}, got {[made.name for made in answer.tool_calls]}")
    if call is None:
        return _read(answer.comparable)
    return _read(json.dumps(answer.tool_calls[0].arguments, allow_nan=False))


def _read(text: str) -> Document:
    document = read_json(text)
    waiting, values = [document], 0
    while waiting and values <= MOST_ITEMS:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting.extend(inner)
        values += not inner
    if values > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS:,} values")
    return document


def reference_document(reference: str, call: str | None) -> tuple[Document, str | None]:
    """The document of a reference text, and the tool it calls; None if it names none.

    Args:
        reference: JSON.
        call: Tool that the answer calls; None for a text, whose reference is a document as it stands.

    Raises:
        ValueError: It is not JSON, or holds several calls.
    """
    calls = None if call is None else read_calls(reference)
    if calls is None:
        return _read(reference), None
    if len(calls) > 1:
        raise ValueError(f"it holds {len(calls)} calls")
    return document_of(Sample(text="", tool_calls=tuple(calls)), calls[0].name), calls[0].name


def json_text(value: Document) -> str:
    """JSON of a document with every number as the answer wrote it."""
    if isinstance(value, dict):
        fields = (f"{json.dumps(key, ensure_ascii=False)}: {json_text(inner)}" for key, inner in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(json_text, value))}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


# -- Leaves --------------------------------------------------------------------------------------------------------


def leaves(document: Document, spec: ItemsSpec, judges: Mapping[str, Judge]) -> list[Leaf]:
    """The items of a document, in the order of the text.

    One item for each leaf path. A list of scalars gives one item for each entry; any other list is one item, unless
    ``spec.keys`` names a key field by which its entries are matched. Null, ``[]`` and ``{}`` are items. A field of
    ``spec.optional`` that an object leaves out is an item whose value is `ABSENT`, after the object's other fields.
    """
    return list(_walk(document, "", "", (), spec, judges))


def _walk(
    value: Document, path: str, pattern: str, address: Address, spec: ItemsSpec, judges: Mapping[str, Judge]
) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for name, inner in value.items():
            step = escaped(name)
            yield from _walk(inner, f"{path}/{step}", f"{pattern}/{step}", (*address, name), spec, judges)
        left_out = [name for name in _optional_in(pattern, spec) if name not in value]
        for name in left_out:
            step = escaped(name)
            yield Leaf(f"{path}/{step}", f"{pattern}/{step}", ABSENT, (*address, name))
        if value or left_out:
            return
    elif isinstance(value, list) and value:
        keys = _keys_of(value, spec.keys.get(pattern))
        if keys is not None:
            for i, (item, key) in enumerate(zip(value, keys, strict=True)):
                at = (*address, _KeyedEntry(spec.keys[pattern], key))
                yield from _walk(item, f"{path}/{i}", f"{pattern}/*", at, spec, judges)
            return
        if not any(isinstance(item, dict | list) for item in value):
            judge = judges.get(f"{pattern}/*")
            why = _Tally(judge, value).excess
            earlier = _Tally(None if why else judge)
            for i, item in enumerate(value):
                same, _ = earlier.same(item)
                earlier.add(item)
                yield Leaf(f"{path}/{i}", f"{pattern}/*", item, address, same + 1, why)
            return
    yield Leaf(path, pattern, value, address)


def _keys_of(items: Sequence[Document], field: str | None) -> list[str] | None:
    """The keys of objects in a list; None unless every item has one, each another."""
    if field is None or not all(isinstance(item, dict) and field in item for item in items):
        return None
    keys = [canonical_value(_nfc(item[field])) for item in items]
    return keys if len(set(keys)) == len(keys) else None


def _optional_in(pattern: str, spec: ItemsSpec) -> list[str]:
    """Names of the optional fields of the object at a path."""
    at = (path.rpartition("/") for path in spec.optional)
    return [unescaped(name) for parent, _, name in at if parent == pattern]


class _Tally:
    """The items of a list with equal ones counted together: comparing every two items of a long list takes minutes."""

    def __init__(self, judge: Judge | None, items: Sequence[Document] = ()) -> None:
        self._judge = judge
        self._counts: dict[str, tuple[Document, int]] = {}
        for item in items:
            self.add(item)

    def add(self, item: Document) -> None:
        text = self._text(item)
        first, count = self._counts.get(text, (item, 0))
        self._counts[text] = (first, count + 1)

    def same(self, item: Document) -> tuple[int, int]:
        """Number of items that are the same as this one, and number of those about which the judge gives no verdict."""
        if self._judge is None:
            return self._counts.get(self._text(item), (item, 0))[1], 0
        others = [other for other, _ in self._counts.values()]
        counts = [count for _, count in self._counts.values()]
        verdicts = list(zip(_compared(item, others, self._judge), counts, strict=True))
        same = sum(count for verdict, count in verdicts if verdict is True)
        return same, sum(count for verdict, count in verdicts if verdict is None)

    @property
    def excess(self) -> str:
        """The reason why the judge does not compare the items: there are too many different ones; empty if it does."""
        if self._judge is None or len(self._counts) <= MOST_COMPARED:
            return ""
        return (
            f"the list has {len(self._counts)} different items, and the items' judge, which compares every two of "
            f"them, takes at most {MOST_COMPARED}"
        )

    def _text(self, item: Document) -> str:
        # Without a judge 1 and 1.0 are the same; a judge may tell them apart.
        return canonical_value(_nfc(item)) if self._judge is None else json_text(_nfc(item))


class OtherDocument:
    """A document that items are compared with, such as a sample's. Each of its lists is read once for all items.

    Attributes:
        value: The document.
    """

    def __init__(self, value: Document, judges: Mapping[str, Judge]) -> None:
        self.value = value
        self._judges = judges
        self._tallies: dict[Address, _Tally] = {}
        self._keys: dict[Address, dict[str, int]] = {}

    def supports(self, leaf: Leaf) -> bool | None:
        """Whether the document supports an item; None if the field's judge gives no verdict, or its list is too long.

        * A value: the document has the same one at that path.
        * An item of a list: it has at least as many equal items as there are up to this one.
        * An absent field: it does not have that field.
        """
        there = self._at(leaf.address)
        if leaf.value is ABSENT:
            return there is ABSENT
        judge = self._judges.get(leaf.pattern)
        if not leaf.nth:
            return False if there is ABSENT else _same(leaf.value, there, judge)
        if not isinstance(there, list):
            return False
        if leaf.address not in self._tallies:
            self._tallies[leaf.address] = _Tally(judge, there)
        if leaf.unmeasured or self._tallies[leaf.address].excess:
            return None
        same, unknown = self._tallies[leaf.address].same(leaf.value)
        if same >= leaf.nth:
            return True
        return None if unknown else False

    def _at(self, address: Address) -> Document:
        """The value at an address, or `ABSENT`."""
        value = self.value
        for depth, step in enumerate(address):
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return ABSENT
                value = value[step]
                continue
            index = self._places(value, address[:depth], step.field).get(step.key)
            if index is None:
                return ABSENT
            value = value[index]
        return value

    def _places(self, value: Document, address: Address, field: str) -> dict[str, int]:
        """The position of each item of a list of objects by its key; empty if the items cannot be told apart."""
        if address not in self._keys:
            keys = _keys_of(value, field) if isinstance(value, list) else None
            self._keys[address] = {key: index for index, key in enumerate(keys or ())}
        return self._keys[address]


# -- Values --------------------------------------------------------------------------------------------------------


def _same(a: Document, b: Document, judge: Judge | None) -> bool | None:
    """Whether two values are the same; see `_compared`."""
    (verdict,) = _compared(a, [b], judge)
    return verdict


def _compared(value: Document, others: Sequence[Document], judge: Judge | None) -> list[bool | None]:
    """Whether a value is the same as each of the others. Values of different types never are: a text is not a number.

    Without a judge: numbers by value, texts by every character after Unicode's normal form C, others by both. A judge
    is asked once, about all others that differ in this.
    """
    value, others = _nfc(value), [_nfc(other) for other in others]
    canonical = canonical_value(value)
    alike = [_kind(value) == _kind(other) for other in others]
    verdicts: list[bool | None] = [
        kin and canonical == canonical_value(o) for kin, o in zip(alike, others, strict=True)
    ]
    if judge is None or value is None or isinstance(value, bool):
        return verdicts
    asked = [i for i, verdict in enumerate(verdicts) if alike[i] and not verdict]
    pairs = [(_text(value), _text(others[i])) for i in asked]
    for i, verdict in zip(asked, judge.equivalent("", pairs) if pairs else (), strict=True):
        if verdict is not None and not isinstance(verdict, bool):
            raise ValueError(f"a verdict must be True, False or None, got a {type(verdict).__name__}")
        verdicts[i] = verdict
    return verdicts


def _text(value: Document) -> str:
    return value if isinstance(value, str) else json_text(value)


def _kind(value: Document) -> str:
    return "number" if isinstance(value, Decimal) else type(value).__name__


def _nfc(value: Document) -> Document:
    if isinstance(value, str):
        return value if value.isascii() else unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        return {key: _nfc(inner) for key, inner in value.items()}
    return [_nfc(inner) for inner in value] if isinstance(value, list) else value


def field_judges(spec: ItemsSpec, judge_by_path: Mapping[str, Judge] | None = None) -> dict[str, Judge]:
    """The judge of each field that has its own, by path.

    Args:
        spec: The items.
        judge_by_path: Judge objects by path, for judges that cannot be made by name.

    Raises:
        UsageError: A judge cannot be made by name and was not given, or another one was given; both are named.
    """
    judge_by_path = dict(judge_by_path or {})
    if unknown := sorted(set(judge_by_path) - set(spec.judges)):
        raise UsageError(f"judges were given for {unknown}, but the items name judges for {sorted(spec.judges)}")
    judges: dict[str, Judge] = {}
    for path, stored in spec.judges.items():
        judge = judge_by_path.get(path)
        if judge is None:
            try:
                judge = make_judge(stored.name, **stored.params)
            except UsageError as error:
                raise UsageError(
                    f"the field {path} was calibrated with judge {stored.name!r}, which cannot be made by name here "
                    f"({error}). Pass it: judge={{{path!r}: ...}}."
                ) from error
        if judge.spec != stored:
            raise UsageError(
                f"the judge of the field {path} differs: calibrated with {stored!r}, running {judge.spec!r}. "
                "Calibrate again, or install the version that made the artifact."
            )
        judges[path] = judge
    return judges


# -- What is left --------------------------------------------------------------------------------------------------


def kept_value(document: Document, kept: Mapping[str, bool], path: str = "") -> Document:
    """The document without the items that are held back; `ABSENT` if nothing is left.

    Nothing stands in place of an item that is held back, and a container of which nothing is left is left out as well:
    ``[]`` in place of a list with one doubtful item would be another claim.

    Args:
        document: The document.
        kept: For the path of each item whether it is kept.
        path: JSON pointer of the document within the whole one.
    """
    if path in kept:
        return document if kept[path] else ABSENT
    if isinstance(document, dict):
        inner = {name: kept_value(item, kept, f"{path}/{escaped(name)}") for name, item in document.items()}
        return {name: item for name, item in inner.items() if item is not ABSENT} or ABSENT
    if isinstance(document, list):
        items = (kept_value(item, kept, f"{path}/{i}") for i, item in enumerate(document))
        return [item for item in items if item is not ABSENT] or ABSENT
    return ABSENT  # a value that is not an item was never measured


def placed(document: Document, path: str, value: Document) -> Document:
    """The document with another value at a JSON pointer; a field that an object does not have is added to it.

    Raises:
        ValueError: The document has no value at the path.
    """
    steps = [unescaped(step) for step in path.split("/")[1:]]
    try:
        return _placed(document, steps, value)
    except LookupError as error:
        raise ValueError(f"the answer has no place {path!r}") from error


def _placed(document: Document, steps: Sequence[str], value: Document) -> Document:
    if not steps:
        return value
    name, *rest = steps
    if isinstance(document, dict) and (not rest or name in document):
        return {**document, name: _placed(document.get(name, ABSENT), rest, value)}
    if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
        index = int(name)
        return [*document[:index], _placed(document[index], rest, value), *document[index + 1 :]]
    raise LookupError(name)


def json_spec(
    bindings: Bindings | None = None,
    *,
    schema: Mapping[str, Any] | None = None,
    judges: Mapping[str, Judge | str] | None = None,
    keys: Mapping[str, str] | None = None,
    optional: Sequence[str] | None = None,
    cap: int | None = None,
) -> ItemsSpec:
    """The specification of JSON fields as items.

    Args:
        bindings: The plan's tools and answer format, whose schema names the fields.
        schema: The JSON schema, where it is not that of the bindings.
        judges: Judge, or name of one, by path ("/items/*/price"): "numeric", "exact", "date" or an object.
        keys: Key field of lists of objects, by path of the list: {"/items": "sku"}.
        optional: Paths of fields that an answer may leave out. Default: those that the schema does not require.
        cap: Most items that can be kept. Default: the number of leaf fields of the schema.

    Raises:
        UsageError: The cap is needed: the schema is missing, or a list in it has no ``maxItems``.
    """
    read_from = schema or schema_of(bindings)
    fields = Fields(None, (), (), ()) if read_from is None else leaf_fields(read_from, keys)
    cap = fields.most if cap is None else cap
    if cap is None:
        why = f"the lists {', '.join(fields.unbounded)} have no maxItems" if fields.unbounded else "there is no schema"
        raise UsageError(f"cap is needed, because {why}. Give the most fields that nearly all answers have.")
    return ItemsSpec(
        keys=dict(sorted((keys or {}).items())),
        optional=tuple(sorted(fields.optional if optional is None else optional)),
        judges={path: _made(judge).spec for path, judge in sorted((judges or {}).items())},
        cap=cap,
    )


def _made(judge: Judge | str) -> Judge:
    return make_judge(judge) if isinstance(judge, str) else judge
