"""Cost of grouping ten samples by meaning with an NLI model: ours against the ways of other implementations.

    python -m benchmarks.judging --data ../shared/data/triviaqa-20samples.jsonl

The texts are real; the cross-encoder has random weights, because arithmetic and counts are the same for trained ones of
its size. Its head is shifted so that about a third of the directed judgements are entailment, because the number of
merges decides how many pairs a greedy way judges. The other ways are re-implemented here in a few lines each, not run
from their packages. Rounds are interleaved; ratios are taken within a round, and the table shows their medians.

    python -m benchmarks.judging --data ../shared/data/triviaqa-20samples.jsonl --batches [--device cuda]

Throughput of batches of several questions: judgements a second of the cross-encoder, and answers a second of the
embedded model, by the number of questions in a batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from langchain_core.messages import BaseMessage, HumanMessage
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from calibrate.data.formats.questions import read_questions as read_embedded
from examples.demo.embedded import MODEL, TASKS
from guardrail.sampling.sampler import Sampler
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty import measure_stream
from integrations.transformers_chat import TransformersChat
from integrations.transformers_judges import NliJudge

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
ENTAILMENT = 2
LABELS = ("contradiction", "neutral", "entailment")


@dataclass(frozen=True)
class Question:
    """A question and its sampled answers."""

    text: str
    answers: tuple[str, ...]


@dataclass
class Count:
    """Work of a cross-encoder since the last reset."""

    judgements: int = 0
    """Directed judgements: rows of the forward passes."""
    forwards: int = 0
    """Forward passes."""
    positions: int = 0
    """Rows times length, padding included."""

    def watch(self, model: Any) -> None:
        """Count every forward pass of a model from now on."""
        model.register_forward_hook(self._saw, with_kwargs=True)

    def _saw(self, _: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        rows, length = kwargs["input_ids"].shape
        self.judgements += rows
        self.forwards += 1
        self.positions += rows * length


@dataclass
class Plain:
    """A cross-encoder as scripts use it: a list of pairs, padded to the longest, in one forward pass."""

    model: Any
    tokenizer: Any

    def entailed(self, pairs: Sequence[tuple[str, str]], batch: int) -> list[bool]:
        """Return, for each directed pair, whether entailment is the most probable label."""
        verdicts: list[bool] = []
        for start in range(0, len(pairs), batch):
            part = pairs[start : start + batch]
            inputs = self.tokenizer([a for a, _ in part], [b for _, b in part], padding=True, return_tensors="pt")
            with torch.inference_mode():
                verdicts += (self.model(**inputs).logits.argmax(-1) == ENTAILMENT).tolist()
        return verdicts


def all_pairs(nli: Plain, question: Question) -> None:
    """lm-polygraph: all ordered pairs of the distinct strings, each with itself too, in batches of 10, no question."""
    unique = list(dict.fromkeys(question.answers))
    nli.entailed([(a, b) for a in unique for b in unique], batch=10)


def all_other_pairs(nli: Plain, question: Question) -> None:
    """UQ-NLG: all ordered pairs of two distinct strings in batches of 128."""
    unique = [f"{question.text} {answer}" for answer in dict.fromkeys(question.answers)]
    nli.entailed([(a, b) for a in unique for b in unique if a != b], batch=128)


def nature(nli: Plain, question: Question) -> None:
    """The Nature code: a founder against all later samples, assigned or not, both ways, one pair in a forward pass."""
    texts = [f"{question.text} {answer}" for answer in question.answers]
    cluster = [-1] * len(texts)
    for i, founder in enumerate(texts):
        if cluster[i] == -1:
            cluster[i] = i
            for j in range(i + 1, len(texts)):
                there, back = (nli.entailed([pair], 1)[0] for pair in ((founder, texts[j]), (texts[j], founder)))
                cluster[j] = i if there and back else cluster[j]


def rounds_of_32(nli: Plain, question: Question) -> None:
    """uqlm: each distinct string against the first member of every cluster so far, both ways, in batches of 32."""
    founders: list[str] = []
    for text in (f"{question.text} {answer}" for answer in dict.fromkeys(question.answers)):
        pairs = [pair for founder in founders for pair in ((founder, text), (text, founder))]
        verdicts = nli.entailed(pairs, batch=32)
        if not any(there and back for there, back in zip(verdicts[::2], verdicts[1::2], strict=True)):
            founders.append(text)


PEERS: dict[str, Callable[[Plain, Question], None]] = {
    "all pairs, as lm-polygraph": all_pairs,
    "all other pairs, as UQ-NLG": all_other_pairs,
    "greedy, one pair a pass, as the Nature code": nature,
    "greedy, rounds of 32, as uqlm": rounds_of_32,
}


def ours(judge: NliJudge, questions: Sequence[Question], at_once: int) -> None:
    """Discrete semantic entropy by this library, ``at_once`` questions a call."""
    estimator = make("discrete_semantic_entropy", judge=judge)
    for start in range(0, len(questions), at_once):
        part = questions[start : start + at_once]
        plan = SamplingPlan(n=len(part[0].answers))
        scores = list(measure_stream([_drawn(question) for question in part], [estimator], plan))
        assert all(score.value is not None for (score,) in scores), scores


def _drawn(question: Question) -> SampleSet:
    samples = tuple(Sample(text=answer) for answer in question.answers)
    return SampleSet(question=question.text, primary=samples[0], samples=samples)


def read_questions(data: Path, n: int) -> Iterator[Question]:
    """Yield questions with their first n samples; skip those with an empty sample, which cannot be measured."""
    with data.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            answers = tuple(sample["text"] for sample in row["samples"][:n])
            if len(answers) == n and all(answer.strip() for answer in answers):
                yield Question(row["question"], answers)


def save_cross_encoder(folder: Path, questions: Sequence[Question], *, hidden: int, layers: int) -> None:
    """Save a random BERT cross-encoder, and a tokenizer built from the texts, in a folder."""
    built = Tokenizer(models.WordPiece(vocab=_vocabulary(questions), unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    ends = [(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")]
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIALS, strict=True))
    input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=built, model_input_names=input_names, **names)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 32),
        pad_token_id=0,
        initializer_range=0.3,
        id2label=dict(enumerate(LABELS)),
        label2id={label: place for place, label in enumerate(LABELS)},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    _lean(model, tokenizer, questions)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _vocabulary(questions: Sequence[Question]) -> dict[str, int]:
    """Return the words that occur more than once, and all characters.

    The vocabulary is not trained, because the trainer breaks ties by chance.
    """
    normal, split = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    texts = [text for question in questions for text in (question.text, *dict.fromkeys(question.answers))]
    words = Counter(word for text in texts for word, _ in split.pre_tokenize_str(normal.normalize_str(text)))
    letters = sorted({letter for word in words for letter in word})
    common = sorted(word for word, times in words.items() if times > 1)
    pieces = dict.fromkeys([*SPECIALS, *common, *letters, *(f"##{letter}" for letter in letters)])
    return {piece: i for i, piece in enumerate(pieces)}


def _lean(model: Any, tokenizer: Any, questions: Sequence[Question]) -> None:
    """Shift the head until about a third of some directed pairs are entailment."""
    pairs = [
        (f"{question.text} {question.answers[0]}", f"{question.text} {other}")
        for question in questions[:40]
        for other in dict.fromkeys(question.answers)
        if other != question.answers[0]
    ]
    inputs = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits
    short = logits[:, :ENTAILMENT].amax(-1) - logits[:, ENTAILMENT]
    with torch.no_grad():
        model.classifier.bias[ENTAILMENT] += torch.quantile(short, 1 / 3)


def run(questions: Sequence[Question], *, rounds: int, hidden: int, layers: int) -> dict[str, dict[str, float]]:
    """Measure, print the table, and return it.

    Returns:
        For each way: directed "judgements", "forwards", "positions", "seconds" (median) and "ratio" (to ours, median
        of the rounds).
    """
    with tempfile.TemporaryDirectory() as temporary:
        save_cross_encoder(Path(temporary), questions, hidden=hidden, layers=layers)
        judge = NliJudge(model=temporary, device="cpu")
    encoder = judge._encoder
    count, plain = Count(), Plain(encoder.model, encoder.tokenizer)
    count.watch(encoder.model)

    def each(way: Callable[[Plain, Question], None]) -> None:
        for question in questions:
            way(plain, question)

    own = "ours"
    ways: dict[str, Callable[[], None]] = {
        own: lambda: ours(judge, questions, len(questions)),
        "ours, one question at a time": lambda: ours(judge, questions, 1),
        **{name: partial(each, way) for name, way in PEERS.items()},
    }
    work: dict[str, Count] = {}
    ways[own]()  # the first pass of a process is slow
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            count.judgements = count.forwards = count.positions = 0
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
            work[name] = Count(count.judgements, count.forwards, count.positions)
    table = {
        name: {
            "judgements": work[name].judgements,
            "forwards": work[name].forwards,
            "positions": work[name].positions,
            "seconds": statistics.median(seconds[name]),
            "ratio": statistics.median(a / b for a, b in zip(seconds[name], seconds[own], strict=True)),
        }
        for name in ways
    }
    weights = sum(parameter.numel() for parameter in encoder.model.parameters())
    distinct = statistics.mean(len(set(question.answers)) for question in questions)
    print(
        f"{len(questions)} questions, {len(questions[0].answers)} samples, {distinct:.2f} distinct strings on average"
    )
    print(f"{weights / 1e6:.1f}M random BERT, float32, {torch.get_num_threads()} threads, {rounds} rounds")
    print(f"{'':44} {'judgements':>10} {'passes':>7} {'positions':>10} {'seconds':>8} {'time / ours':>11}")
    for name, row in table.items():
        print(
            f"{name:44} {row['judgements']:10.0f} {row['forwards']:7.0f} {row['positions']:10.0f} "
            f"{row['seconds']:8.2f} {row['ratio']:11.2f}"
        )
    return table


def batches(questions: Sequence[Question], *, rounds: int, hidden: int, layers: int, device: str) -> dict[int, Rates]:
    """Measure judgements and answers a second by batch size, print the table, and return it.

    Returns:
        Medians of the rounds, by the number of questions at once.
    """
    with tempfile.TemporaryDirectory() as temporary:
        save_cross_encoder(Path(temporary), questions, hidden=hidden, layers=layers)
        judge = NliJudge(model=temporary, device=device)
    model = TransformersChat(model=str(MODEL), device=device)
    plan = SamplingPlan(n=10, max_tokens=16)
    prompts: list[list[BaseMessage]] = [
        [HumanMessage(row.question)] for row in read_embedded(TASKS[0].questions)[: len(questions)]
    ]
    count = Count()
    count.watch(judge._encoder.model)
    sizes = [size for size in (1, 4, 16, 64) if size <= len(questions)]
    rates_by_size: dict[int, list[Rates]] = {size: [] for size in sizes}
    ours(judge, questions[:1], 1)  # the first pass of a process is slow
    Sampler(model, plan).draw(prompts[:1])
    for _ in range(rounds):
        for size in sizes:
            count.judgements = count.forwards = 0
            judging = _seconds(partial(ours, judge, questions, size))
            sampling = _seconds(partial(_draw_all, model, prompts, plan, size))
            answers = len(prompts) * (plan.n + 1)
            rates_by_size[size].append(
                Rates(count.judgements / judging, count.judgements / count.forwards, answers / sampling)
            )
    table = {size: Rates(*map(statistics.median, zip(*rates, strict=True))) for size, rates in rates_by_size.items()}
    print(f"{len(questions)} questions, {rounds} rounds, {device}, {torch.get_num_threads()} threads")
    print(f"{'questions at once':>18} {'judgements/s':>13} {'judgements a pass':>18} {'answers/s, embedded model':>26}")
    for size, row in table.items():
        print(f"{size:18} {row.judgements:13.0f} {row.a_pass:18.1f} {row.answers:26.1f}")
    return table


def _draw_all(model: TransformersChat, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, size: int) -> None:
    for start in range(0, len(prompts), size):
        Sampler(model, plan).draw(prompts[start : start + size])


class Rates(NamedTuple):
    """Throughput of one batch size."""

    judgements: float
    """Directed judgements of the cross-encoder per second."""
    a_pass: float
    """Directed judgements in one of its forward passes, on average."""
    answers: float
    """Answers of the embedded model per second."""


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="JSONL with question and samples [{text}]")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", action="store_true", help="how much is done in a second, by questions at once")
    parser.add_argument("--device", default="cpu", help="with --batches")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    questions = list(read_questions(arguments.data, arguments.samples))[: arguments.questions]
    shape = {"rounds": arguments.rounds, "hidden": arguments.hidden, "layers": arguments.layers}
    if arguments.batches:
        batches(questions, device=arguments.device, **shape)
        return
    run(questions, **shape)


if __name__ == "__main__":
    main()
