"""The pipeline example: its parts, and short runs with a pipe and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.pipeline import config, model, text, train  # noqa: E402


@pytest.fixture(scope="module")
def play() -> text.Text:
    return text.load()


def test_the_text_is_all_there_and_a_tenth_is_held_out(play):
    whole = play.decode(torch.cat([play.train, play.held_out]))
    assert whole == text.FILE.read_text()
    assert whole.startswith("First Citizen:\n") and whole.endswith("noble memory. Assist.\n")
    assert len(play.held_out) == pytest.approx(len(whole) / 10, rel=0.01)
    assert play.decode(play.encode("CORIOLANUS:\n")) == "CORIOLANUS:\n"


def test_targets_are_the_following_characters(play):
    inputs, wanted = text.batch(play.train, 5, 16, torch.Generator().manual_seed(0))
    assert inputs.shape == wanted.shape == (5, 16)
    assert torch.equal(inputs[:, 1:], wanted[:, :-1])


def test_the_model_does_not_look_ahead():
    net = model.transformer(10, 8, 16, 2, 2, seed=0)
    one = torch.randint(10, (1, 8))
    other = one.clone()
    other[0, 5:] = (other[0, 5:] + 1) % 10
    torch.testing.assert_close(net(one)[:, :5], net(other)[:, :5])
    assert not torch.allclose(net(one)[:, 5:], net(other)[:, 5:])


def test_scripted_layers_compute_the_same():
    net = model.transformer(10, 8, 16, 2, 2, seed=0)
    numbers = torch.randint(10, (3, 8))
    expected = net(numbers)
    torch.testing.assert_close(model.scripted(net)(numbers), expected)


def test_the_model_can_learn():
    net = model.transformer(4, 8, 16, 2, 1, seed=0)
    numbers = torch.arange(9).remainder(4).repeat(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(60):
        loss = functional.cross_entropy(
            net(numbers[:, :-1]).flatten(0, 1), numbers[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2


def test_letters_alone_are_worth_their_entropy(play):
    assert 2.8 < train.letters_alone(play) < 3.6


@pytest.mark.parametrize(
    "line",
    ["--partitions 1", "--partitions 5", "--chunks 0", "--steps 0", "--timeline run.png"],
)
def test_bad_settings_are_refused(line, capsys):
    with pytest.raises(SystemExit):
        config.parse(line.split())
    assert line.split()[0] in capsys.readouterr().err


def run(*line: str) -> str:
    """What the example prints; it must end well within the bound."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.pipeline.train", "--steps", "25", *line],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


def test_a_pipe_learns_what_the_plain_model_does(tmp_path):
    picture = tmp_path / "run.svg"
    piped = run("--partitions", "3", "--checkpoint", "except_last", "--timeline", str(picture))
    plain = run("--plain")
    assert losses(piped) == pytest.approx(losses(plain), rel=1e-3)
    assert losses(plain)[-2] < losses(plain)[0]
    assert picture.read_text().startswith("<svg") and "bubble" in piped
    assert re.search(r"pipe: layers \[\d, \d, \d\], 4 chunks, checkpoint=except_last", piped)
