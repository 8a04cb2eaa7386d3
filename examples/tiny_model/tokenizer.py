"""The tokenizer: byte-level BPE with digits split, and the chat template."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.tiny_model.training_rows import Mix, RowStream
from examples.tiny_model.world import World

VOCABULARY = 1600
PAD, END, SYSTEM, USER, ASSISTANT, TOOLS, TOOL = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tools|>",
    "<|tool|>",
)
SPECIAL = (PAD, END, SYSTEM, USER, ASSISTANT, TOOLS, TOOL)
OPTION_MARKS = ("A)", "B)", "C)", "D)")

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content -%}{{ part.text if part.text is defined else '' }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|tools|>{{ tools | tojson }}<|end|>{%- endif -%}
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
{{ raise_exception('unknown role: ' + message.role) }}
{%- endif -%}
<|{{ message.role }}|>{{ text(message.content) }}
{%- if message.tool_calls is defined and message.tool_calls -%}{{ message.tool_calls | tojson }}{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the texts that the model will be shown.

    Args:
        world: The world; its values are repeated so that each becomes a single token.
    """
    tokenizer = Tokenizer(models.BPE())
    # ByteLevel has to come before Digits: the other order puts a space before every digit.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.Digits(individual_digits=True)]
    )
    # The prefix space of an answer is dropped again when decoding.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(OPTION_MARKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(world), trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in OPTION_MARKS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _corpus(world: World) -> list[str]:
    stream = RowStream(world, "tokenizer")
    mix = Mix(facts=6000, arithmetic=2000, choices=0, reading=500)
    rows = stream.open_rows(mix) + stream.choice_rows(mix)
    lines = [text for row in rows for text in (row.question, row.answer, row.system or "")]
    values = [value.titled for relation in world.relations for value in relation.values]
    # " A" must be one token, otherwise the option read-out looks at the wrong position.
    return lines + 400 * values + 400 * ["A", "B", "C", "D"]
