"""A tiny GPT-2 with random weights under the Hugging Face Trainer: a step on a sentence moves its paraphrases more.

Sentences say who does what where, in two wordings. Sources and targets share the fact ("paraphrase") or nothing at all
("unrelated"); the response is the change in the log-probability of the whole sentence.
"""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import local_elasticity as le
from local_elasticity.training.language import sequence_problem, sequences
from local_elasticity.training.transformers import MonitorCallback

FACTS = [
    ("anna", "bakes", "bread", "rome"),
    ("boris", "paints", "walls", "oslo"),
    ("clara", "sells", "books", "lima"),
    ("david", "fixes", "bikes", "cairo"),
]
PLAIN = [f"{who} {does} {what} in {where}" for who, does, what, where in FACTS]
PARAPHRASED = [f"in {where} {who} {does} {what}" for who, does, what, where in FACTS]
WORDS = sorted({word for sentence in PLAIN + PARAPHRASED for word in sentence.split()})


def tokens(sentences: list[str]) -> torch.Tensor:
    return torch.tensor([[WORDS.index(word) for word in sentence.split()] for sentence in sentences])


torch.manual_seed(0)
config = GPT2Config(
    vocab_size=len(WORDS), n_positions=8, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    attn_implementation="eager",
)  # fmt: skip
corpus = [{"input_ids": ids, "labels": ids} for ids in tokens(PLAIN + PARAPHRASED)]
watching = MonitorCallback(
    sequences(tokens(PLAIN)),
    targets=sequences(tokens(PARAPHRASED))[0],
    problem=sequence_problem,
    source_labels=[who for who, *_ in FACTS],
    target_labels=[who for who, *_ in FACTS],
    update=le.SGD(1e-2),
    every=20,
    budget=None,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=60, per_device_train_batch_size=8, learning_rate=3e-3, report_to=[], disable_tqdm=True,
        save_strategy="no", logging_strategy="no", use_cpu=True,
    )  # fmt: skip
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=corpus, callbacks=[watching]).train()

table = watching.monitor.locality()
for row in table.itertuples():
    print(f"step {row.step:3}: paraphrases move {row.within:.2f} as far as the source, others {row.between:.2f}")
assert table.within.iloc[-1] > 2 * table.between.iloc[-1]
