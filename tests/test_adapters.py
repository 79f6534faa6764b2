"""Lightning and the Hugging Face Trainer, the real libraries end to end: unchanged, checkpointed, killed, resumed."""

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.training.history import History
from local_elasticity.training.language import sequence_problem, sequences, token_kl, token_problem, token_sources
from tests.extras import skip_beside_a_broken_torchvision
from tests.test_untouched import fingerprint

ROOT = Path(__file__).parent.parent
NEEDS = {"lightning": "lightning", "transformers": "accelerate"}


def needs(extra):
    missing = find_spec(NEEDS[extra]) is None
    return pytest.mark.skipif(missing, reason=f"the extra '{extra}' is not installed")


def imported(name):
    """A worker, a module that imports the library."""
    skip_beside_a_broken_torchvision()
    return import_module(f"tests.{name}_worker")


@needs("lightning")
@pytest.mark.filterwarnings("ignore")
def test_a_lightning_run_does_not_notice_and_goes_on(tmp_path):
    fit = imported("lightning").fit

    alone, _ = fit(tmp_path / "alone", watch=False)
    seen = []
    watched, monitor = fit(tmp_path / "watched", loggers=[lambda values, step: seen.append(step)])
    assert watched.losses == alone.losses
    assert fingerprint(watched) == fingerprint(alone)
    assert monitor.history.steps == list(range(0, 17, 2))  # batches that accumulate do not count
    assert seen == monitor.history.steps
    first, _ = fit(tmp_path / "half", epochs=2)
    _, resumed = fit(tmp_path / "half", checkpoint=tmp_path / "half" / "last.ckpt")
    assert first.losses == alone.losses[: len(first.losses)]
    assert resumed.history.steps == monitor.history.steps
    for place in range(5):
        assert np.array_equal(resumed.history[place].similarity["kl"], monitor.history[place].similarity["kl"])


@needs("lightning")
@pytest.mark.filterwarnings("ignore")
def test_a_callback_may_be_used_again():
    """By another trainer, which begins anew, and by the same one for another epoch, which goes on."""
    worker = imported("lightning")
    watched = worker.callback()
    for _ in range(2):
        module, trainer = worker.Classifier(), worker.trained_by([watched], 1, enable_checkpointing=False)
        trainer.fit(module, worker.loader())
        assert watched.monitor.history.steps == [0, 2, 4]
    early = watched.monitor.history[1].similarity["kl"]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, worker.loader())
    assert watched.monitor.history.steps == [0, 2, 4, 6, 8]
    assert np.array_equal(watched.monitor.history[1].similarity["kl"], early)


@needs("transformers")
@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_run_does_not_notice_and_goes_on(tmp_path, caplog):
    fit = imported("transformers").fit

    losses, alone, _ = fit(tmp_path / "alone", watch=False)
    again, watched, monitor = fit(tmp_path / "watched")
    assert again == losses
    assert fingerprint(watched) == fingerprint(alone)
    assert monitor.history.steps == list(range(0, 17, 2))
    fit(tmp_path / "half", steps=8)
    _, _, resumed = fit(tmp_path / "half", resume=True)
    assert resumed.history.steps == monitor.history.steps
    assert np.array_equal(resumed.history[4].similarity["kl"], monitor.history[4].similarity["kl"])
    folder = str(tmp_path / "half" / "checkpoint-8")
    assert "the history begins after step" not in caplog.text
    _, _, lost = fit(tmp_path / "elsewhere", steps=10, resume=folder)
    assert lost.history.steps == [10]
    assert "so that the history begins after step 8; name the folder" in caplog.text
    _, _, found = fit(tmp_path / "elsewhere", steps=10, resume=folder, named=folder)
    assert found.history.steps == [0, 2, 4, 6, 8, 10]


@pytest.mark.slow
@pytest.mark.parametrize("library", [pytest.param(name, marks=needs(name)) for name in NEEDS])
def test_a_killed_run_goes_on_from_its_checkpoint(library, tmp_path):
    """SIGKILL in the middle; the history up to the checkpoint is kept, what came after is measured again."""
    imported(library)
    command = [sys.executable, str(ROOT / "tests" / f"{library}_worker.py"), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    said = tmp_path / "said.txt"
    with said.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file)
    while process.poll() is None and not (tmp_path / "history.zarr" / "step" / "c" / "5").exists():
        time.sleep(0.05)
    assert process.poll() is None, said.read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = History.open(tmp_path / "history.zarr")
    assert len(before) >= 5  # the sixth may not be written completely
    answer = subprocess.run([*command, "resume"], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    after = History.open(tmp_path / "history.zarr")
    last = 24 if library == "transformers" else 16
    assert after.steps == list(range(0, last + 1, 2))
    for place in range(4):
        assert np.array_equal(after[place].similarity["kl"], before[place].similarity["kl"])


class Bigrams(torch.nn.Module):
    """A causal model whose next token depends on the last alone."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(7, 5), torch.nn.Linear(5, 7)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.embedding(input_ids)))


def test_a_language_model_moves_by_its_log_probabilities():
    """Against a step on a copy of the model, written out."""
    model = Bigrams().double()
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 5, 0], [6, 0, 1, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]])
    inputs, lengths = sequences(ids, mask)

    def log_p(net):
        p = net(ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        return (p * mask[:, 1:]).sum(1)

    expected = torch.zeros(3, 3)
    kls = torch.zeros(3, 3)
    for i in range(3):
        stepped = Bigrams().double()
        stepped.load_state_dict(model.state_dict())
        optimizer = torch.optim.SGD(stepped.parameters(), lr=0.1)
        (-log_p(stepped)[i] / (mask[i, 1:].sum())).backward()
        optimizer.step()
        expected[i] = (log_p(stepped) - log_p(model)).detach().abs()
        p, q = (net(ids)[:, :-1].log_softmax(-1).detach() for net in (stepped, model))
        kls[i] = ((p.exp() * (p - q)).sum(-1) * mask[:, 1:]).sum(1)
    response = le.respond(sequence_problem(model), (inputs, lengths), update=le.SGD(0.1))
    assert torch.allclose(le.relative(response).float(), expected / expected.diagonal()[:, None], rtol=1e-4)
    tokens = le.respond(token_problem(model), token_sources(inputs), update=le.SGD(0.1))
    assert torch.allclose(token_kl(7)(tokens).float(), kls / kls.diagonal()[:, None], rtol=1e-4)


@pytest.mark.parametrize(
    ("ids", "mask", "words"),
    [
        ([[0, 1, 2], [3, 4, 5]], [[1, 1, 0], [0, 1, 1]], "attention_mask: row 1 is not ones with zeros on one side"),
        ([[0, 1, 2, 3]], [[1, 0, 1, 0]], "attention_mask: row 0 is not ones"),
        ([[0, 1, 2, 3]], [[1, 0, 1, 1]], "attention_mask: row 0 is not ones"),
        ([[0, 1, 2]], [[2, 2, 2]], "attention_mask: row 0 is not ones"),
        ([[0, 1, 2], [3, 4, 5]], [[1, 1, 1], [1, 0, 0]], "input_ids: sequence 1 has fewer than two tokens"),
        ([[0], [1]], None, "input_ids: sequence 0 has fewer than two tokens"),
        ([[0, 1, 2]], [[1, 1]], "input_ids, attention_mask: expected two tensors"),
    ],
)
def test_padding_that_would_be_misread_is_refused(ids, mask, words):
    mask = None if mask is None else torch.tensor(mask)
    with pytest.raises(ValueError, match=words):
        sequences(torch.tensor(ids), mask)
    with pytest.raises(ValueError, match=words):
        token_sources({"input_ids": torch.tensor(ids), "attention_mask": torch.ones(2, 1) if mask is None else mask})


def test_padding_on_the_left_and_on_the_right_give_the_same():
    model = Bigrams().double()
    right = sequences(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    left = sequences(torch.tensor([[1, 2, 3], [0, 4, 5]]), torch.tensor([[1, 1, 1], [0, 1, 1]]))
    assert all(torch.equal(right[0][key], left[0][key]) for key in right[0])
    assert torch.equal(right[1], left[1])
    found = le.respond(sequence_problem(model), left).target_change
    assert torch.equal(found, le.respond(sequence_problem(model), right).target_change)


def test_a_prompt_is_read_and_not_predicted():
    """Answer-only training, against a step on a copy of the model, written out."""
    model = Bigrams().double()
    ids, labels = torch.tensor([[1, 2, 3, 4], [5, 6, 1, 2]]), torch.tensor([[-100, -100, 3, 4], [-100, 6, 1, 2]])
    sources = sequences({"input_ids": ids, "labels": labels})
    assert sources[1].tolist() == [2, 3]

    def log_p(net):
        p = net(ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        return (p * (labels[:, 1:] != -100)).sum(1)

    stepped = Bigrams().double()
    stepped.load_state_dict(model.state_dict())
    (-log_p(stepped)[0] / 2).backward()
    torch.optim.SGD(stepped.parameters(), lr=0.1).step()
    found = le.respond(sequence_problem(model), sources, update=le.SGD(0.1)).target_change[0, :, 0]
    assert torch.allclose(found, (log_p(stepped) - log_p(model)).detach())
    assert token_sources(sources[0])[1].tolist() == [[-100, 3, 4], [6, 1, 2]]


@pytest.mark.parametrize("key", ["completion_mask", "assistant_masks", "loss_mask", "prompt_mask"])
def test_masks_of_trainers_say_what_is_predicted(key):
    """Alone, and together with labels."""
    ids, answer = torch.tensor([[1, 2, 3, 4], [5, 6, 1, 0]]), torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])
    seen = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    mask = (1 - answer) * seen if key == "prompt_mask" else answer
    batch = {"input_ids": ids, "attention_mask": seen, key: mask}
    inputs, counts = sequences(batch)
    assert inputs["predicted"].tolist() == answer.tolist()
    assert counts.tolist() == [2, 2]
    assert token_sources(batch)[1].tolist() == [[-100, 3, 4], [6, 1, -100]]
    labels = torch.tensor([[1, 2, 3, -100], [5, 6, 1, -100]])
    assert sequences({**batch, "labels": labels})[1].tolist() == [1, 2]
    with pytest.raises(ValueError, match=f"^{key}: expected a tensor of 0 and 1 in the shape of input_ids"):
        sequences({**batch, key: mask[:, :2]})


def test_a_mask_that_is_not_known_is_refused():
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match=r"^labels_mask: expected completion_mask, .* leave it out of the batch"):
        sequences({"input_ids": ids, "labels_mask": torch.ones_like(ids)})


def test_padding_may_be_a_token_outside_of_the_vocabulary():
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, -100]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    inputs, _ = sequences(ids, mask)
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]]
    with pytest.raises(ValueError, match="^sources: the model does not take example 1, .*out of range"):
        le.respond(sequence_problem(Bigrams()), sequences(ids))


def test_batches_of_several_lengths_are_padded_to_one():
    batches = [
        {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[-100, 2, 3]])},
        {"input_ids": torch.tensor([[4, 5]]), "attention_mask": torch.ones(1, 2).long()},
    ]
    inputs, counts = sequences(batches)
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert counts.tolist() == [2, 1]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    assert torch.equal(sequences(loader)[0]["input_ids"], inputs["input_ids"])


def test_some_parameters_of_a_language_model_step():
    problem = sequence_problem(Bigrams().double(), params="head")
    assert problem.stepped == ("model.head.weight", "model.head.bias")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[-100, -100]])},
            "labels: no token of sequence 0",
        ),
        (
            {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1]])},
            "labels: expected the shape of input_ids",
        ),
        (
            {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[2, 3, -100]])},
            "labels: expected -100 or the token at each place, got 2 at place 0 of sequence 0, where the token is 1; "
            "pass labels that are not shifted",
        ),
        ({"tokens": torch.tensor([[1, 2]])}, "input_ids: expected tokens, or batches with input_ids, got dict"),
        ([], "input_ids: there are no batches"),
    ],
)
def test_batches_that_say_nothing_are_refused(batch, words):
    with pytest.raises((ValueError, TypeError), match=words):
        sequences(batch)


def test_labels_at_padding_count_for_nothing():
    """Tokenizers and collators put the padding token, another one or -100 there."""
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    for label in (-100, 0, 6):
        labels = torch.tensor([[1, 2, 3], [4, 5, label]])
        assert sequences(ids, mask, labels)[1].tolist() == [2, 1]


class Banning(Bigrams):
    """Never predicts the padding token."""

    def __init__(self):
        super().__init__()
        self.register_buffer("banned", torch.tensor([-torch.inf, *[0.0] * 6]))

    def forward(self, input_ids):
        return super().forward(input_ids) + self.banned


@pytest.mark.parametrize("engine", ["structured", "auto"])
def test_tokens_that_are_never_predicted_may_be_padding(engine):
    """A logit of −∞ times 0 would be NaN, and all of the sequence with it."""
    model, long = Banning().double(), torch.tensor([[1, 2, 3, 4], [5, 2, 6, 1]])
    ids, mask = torch.cat([long, torch.tensor([[6, 1, 0, 0]])]), torch.ones(3, 4, dtype=torch.long)
    mask[2, 2:] = 0
    inputs, _ = sequences(ids, mask)
    problem = token_problem(model)
    outputs = problem.model(**inputs)
    assert torch.equal(outputs[:2], model(long)[:, :-1])
    assert (outputs[mask[:, 1:] == 0] == 0).all()
    S = token_kl(7)(le.respond(problem, token_sources(inputs), update=le.SGD(0.1), engine=engine))
    alone = token_kl(7)(le.respond(problem, token_sources(sequences(long)[0]), update=le.SGD(0.1), engine=engine))
    assert S.isfinite().all()
    assert torch.allclose(S[:2, :2], alone)


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_missing_extra_is_named(library):
    script = f"import sys; sys.modules['{library}'] = None; import local_elasticity.training.{library}"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"local-elasticity[{library}]" in answer.stderr
