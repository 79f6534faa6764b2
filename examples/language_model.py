"""A model with dict inputs: whose next-token prediction moves when one sentence is learned?"""

import torch
from torch import nn

import local_elasticity as le

SENTENCES = ["the cat sat", "the cat ran", "a dog ran", "a dog sat", "red is red", "blue is blue"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


class Tiny(nn.Module):
    """Embeds two words and predicts the third; returns a dict, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 16)
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, len(WORDS))

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(torch.tanh(self.hidden(self.embedding(input_ids).flatten(1))))}


torch.manual_seed(0)
tokens = torch.tensor([[WORDS.index(word) for word in sentence.split()] for sentence in SENTENCES])
problem = le.Problem.of(Tiny(), loss="cross_entropy", output=lambda out: out["logits"])
S = le.similarity(
    problem,
    sources=({"input_ids": tokens[:, :2]}, tokens[:, 2]),
    measure="kl",
    update=le.SGD(0.1),
    source_labels=SENTENCES,
)
for i, sentence in enumerate(SENTENCES):
    nearest = S.le.nearest(source=i, top=1)
    print(
        f"a step on {sentence!r:13} moves {nearest.target_class[0]!r:13} most: {nearest.value[0]:.2f} of its own change"
    )
