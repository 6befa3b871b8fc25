"""Makes a tiny Llama that says what it is told to: `python -m tests.fakes.worded_model FOLDER`.

Its layers add nothing, so that the next token follows from the last one alone: each mode of its chat template opens an
answer with a token of its own, which leads to one answer, word for word. The templates do what drifts in the field:
`think` strips thinking from history, `tools` writes arguments in another order than they were sampled in, `letters` is
sampled as single letters that the tokenizer would write as one token, `plain` changes nothing; `endless` never ends,
and has a context that outlasts whoever waits for it. The mode is given as
`chat_template_kwargs: {"mode": …}`; else a conversation that begins with "think" thinks, and tools are used where there
are any. A program for the same reason as `tiny_model.py`.
"""

import sys
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|im_end|>"
CALL = '<tool_call>{"name": "get", "arguments": {"b": 1, "a": 2}}</tool_call>'
SPECIAL = ("<|endoftext|>", "<|im_start|>", END, "<|plain|>", "<|think|>", "<|tools|>", "<|letters|>", "<|endless|>")
WORDS = (CALL, "<think>", "</think>", "so", "done", "hello", "on")
ANSWERS = (
    ("<|plain|>", "hello", END),
    ("<think>", "so", "</think>", "done", END),
    ("<|tools|>", CALL, END),
    ("<|letters|>", "a", "b", "c", END),
    ("<|endless|>", "on", "on"),
)
MERGES = (("a", "b"), ("ab", "c"))
TEMPLATE = (
    "{%- set told = 'think' if messages[0].content == 'think' else 'tools' if tools else 'plain' -%}"
    "{%- set mode = mode | default(told) -%}"
    "{%- for tool in tools or [] -%}{{ tool.function.name }}\n{% endfor -%}"
    "{%- for m in messages -%}"
    "<|im_start|>{{ m.role }}{{ '\n' }}"
    "{%- if m.role == 'assistant' -%}"
    "<|{{ mode }}|>{{ m.content.split('</think>')[-1] if mode == 'think' else m.content }}"
    "{%- for c in m.tool_calls or [] -%}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ dict(c.function.arguments | dictsort) | tojson }}}'
    "</tool_call>"
    "{%- endfor -%}"
    "{%- else -%}{{ m.content }}{%- endif -%}"
    "<|im_end|>{{ '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}<|{{ mode }}|>"
    "{%- if mode == 'think' -%}<think>{%- endif -%}{%- endif -%}"
)
WIDTH = 256
CONTEXT = 16384
CERTAINTY = 100.0


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, the merges, and words that are one token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *("".join(pair) for pair in MERGES)]
    inner = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=list(MERGES)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    inner.add_tokens([AddedToken(text, special=False, normalized=False) for text in WORDS])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=END, pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = TEMPLATE
    return made


def make(folder: Path) -> None:
    """Write model and tokenizer."""
    made = tokenizer()
    vocabulary = len(made)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=made.convert_tokens_to_ids(END),
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    known_VW = torch.randint(0, 2, (vocabulary, WIDTH)).float() * 2 - 1
    next_VW = torch.zeros(vocabulary, WIDTH)
    for answer in ANSWERS:
        for before, after in pairwise(made.convert_tokens_to_ids(list(answer))):
            next_VW[after] += known_VW[before] * CERTAINTY / WIDTH
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(known_VW)
        model.lm_head.weight.copy_(next_VW)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.generation_config.eos_token_id = config.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    made.save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
