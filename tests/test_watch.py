"""Watching saved checkpoints, in Python and from the command."""

import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.training.checkpoints import find_model, read_checkpoint, watch
from local_elasticity.training.history import History

NETS = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
number = 3
"""


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def trained(folder):
    """A live monitor, and checkpoints of the same run."""
    x, y = le.data.load("digits").take(range(10), 30)
    points = le.data.load("digits").take(range(10), 2, split="test")
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    monitor = le.Monitor(net, points, loss="cross_entropy", measure=("kl",), every=10, budget=None)
    for step in range(21):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if monitor.step(step):
            torch.save({"model_state_dict": net.state_dict(), "lr": 1e-2}, folder / f"run2-step{step:03}.pt")
    return monitor


def test_the_command_makes_the_history_of_the_live_run(tmp_path):
    live = trained(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    files = sorted(str(file) for file in tmp_path.glob("*.pt"))
    options = ["--model", "nets:make", "--data", "digits", "--per-class", "2", "--out", "seen"]
    options += ["--measure", "kl, relative"]
    command = [sys.executable, "-m", "local_elasticity", "watch", *reversed(files), *options]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "3 probes" in answer.stdout
    history = History.open(tmp_path / "seen" / "history.zarr")
    assert history.steps == [0, 10, 20]
    for one, other in zip(live.history, history, strict=True):
        assert np.allclose(one.similarity["kl"], other.similarity["kl"], rtol=1e-5, equal_nan=True)
    assert (tmp_path / "seen" / "curves.png").stat().st_size > 5000
    again = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 2
    assert "--out: seen holds a history already" in again.stderr


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model._orig_mod.", "net."])
def test_wrapped_checkpoints_are_read(prefix, tmp_path):
    net = make()
    wrapped = {prefix + name: p for name, p in net.state_dict().items()}
    torch.save({"state_dict": wrapped, "global_step": 7}, tmp_path / "a.ckpt")
    step, weights = read_checkpoint(tmp_path / "a.ckpt", make())
    assert step == 7
    assert all(torch.equal(weights[name], p) for name, p in net.state_dict().items())


@pytest.mark.parametrize(
    ("name", "saved", "step"),
    [
        ("step=120-val_loss=0.25.ckpt", {}, 120),
        ("epoch=3-step=120.ckpt", {}, 120),
        ("weights_7_acc-0.25.pt", {}, 7),
        ("checkpoint-120/pytorch_model.bin", {}, 120),
        ("120/model.pt", {}, 120),
        ("last.pt", {"step": torch.tensor(40)}, 40),
        ("last-3.pt", {"global_step": 41, "step": 2}, 41),
    ],
)
def test_a_step_is_found_where_people_put_it(name, saved, step, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    torch.save({"model": make().state_dict(), **saved}, tmp_path / name)
    assert read_checkpoint(tmp_path / name, make())[0] == step


def test_folders_of_hugging_face_are_read(tmp_path, monkeypatch):
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
    net, x, y = make(), torch.randn(4, 64), torch.arange(4)
    folders = [tmp_path / f"checkpoint-{step}" for step in (20, 5)]
    for folder in folders:
        folder.mkdir()
        save_file(net.state_dict(), folder / "model.safetensors")
    assert watch(folders, make(), (x, y), loss="cross_entropy").history.steps == [5, 20]
    (tmp_path / "checkpoint-7").mkdir()
    with pytest.raises(ValueError, match="checkpoint-7 holds no model.safetensors or pytorch_model.bin"):
        watch([tmp_path / "checkpoint-7"], make(), (x, y), loss="cross_entropy")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ValueError, match="pip install safetensors"):
        watch(folders, make(), (x, y), loss="cross_entropy")


def test_checkpoints_are_held_one_at_a_time(tmp_path, monkeypatch):
    held, most, load = weakref.WeakSet(), [], torch.load

    def counting(*args, **options):
        content = load(*args, **options)
        held.add(content["0.weight"])
        most.append(len(held))
        return content

    monkeypatch.setattr(torch, "load", counting)
    for step in range(4):
        torch.save(nn.Sequential(nn.Linear(3, 2)).state_dict(), tmp_path / f"{step}.pt")
    files = [tmp_path / f"{step}.pt" for step in range(4)]
    watch(files, nn.Sequential(nn.Linear(3, 2)), (torch.randn(4, 3), torch.arange(4) % 2), loss="cross_entropy")
    assert max(most) <= 2


class Evil:
    def __reduce__(self):
        return print, ("owned",)


def test_mistakes_are_told(tmp_path, capsys):
    x, y = torch.randn(4, 64), torch.arange(4)
    torch.save(make().state_dict(), tmp_path / "final.pt")
    with pytest.raises(ValueError, match="expected a step in the name of .*, got none"):
        watch([tmp_path / "final.pt"], make(), (x, y), loss="cross_entropy")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other-1.pt")
    with pytest.raises(ValueError, match="does --model make the model"):
        watch([tmp_path / "other-1.pt"], make(), (x, y), loss="cross_entropy")
    for wrong in (torch.ones(3), [torch.ones(3)]):
        torch.save(wrong, tmp_path / "wrong-1.pt")
        with pytest.raises(ValueError, match="wrong-1.pt holds a (Tensor|list), not weights"):
            watch([tmp_path / "wrong-1.pt"], make(), (x, y), loss="cross_entropy")
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
    torch.save(wide.state_dict(), tmp_path / "wide-1.pt")
    with pytest.raises(ValueError, match=r"1.weight has the shape \(9, 64\), in the model \(8, 64\)"):
        watch([tmp_path / "wide-1.pt"], make(), (x, y), loss="cross_entropy", store=tmp_path / "history.zarr")
    assert not (tmp_path / "history.zarr").exists()
    torch.save({"x": Evil()}, tmp_path / "evil-1.pt")
    with pytest.raises(ValueError, match="cannot be read as weights alone"):
        watch([tmp_path / "evil-1.pt"], make(), (x, y), loss="cross_entropy")
    assert "owned" not in capsys.readouterr().out
    for place, words in (("nets", "module:factory"), ("nowhere:make", "is not there"), ("math:pi", "not an nn.Module")):
        with pytest.raises((ValueError, TypeError), match=words):
            find_model(place)
    with pytest.raises(ValueError, match="at least one"):
        watch([], make(), (x, y))
