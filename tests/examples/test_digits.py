"""The parts of the digits example that need no other process, and two whole runs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from examples.digits import config, data, plot, report, results, table  # noqa: E402
from examples.digits.model import Classifier, FrontEnd  # noqa: E402
from examples.digits.server import Rounds  # noqa: E402
from examples.digits.trainer import PHASES, Report  # noqa: E402

BACKEND = os.environ.get("WEFT_TEST_BACKEND", "WEFT")


@pytest.fixture(scope="module")
def digits() -> data.Digits:
    return data.load()


def test_the_data_is_all_there(digits):
    assert digits.images.shape == (1797, 1, 8, 8)
    assert (digits.images.min(), digits.images.max()) == (0, 1)


def test_split_is_a_stratified_fifth(digits):
    train, test = data.split(digits.labels, seed=3)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(1797))
    everywhere, held_out = digits.labels.bincount(), digits.labels[test].bincount()
    assert all(
        abs(part - whole / 5) <= 0.5 for part, whole in zip(held_out, everywhere, strict=True)
    )


def test_split_depends_on_the_seed_alone(digits):
    assert torch.equal(data.split(digits.labels, 3)[1], data.split(digits.labels, 3)[1])
    assert not torch.equal(data.split(digits.labels, 3)[1], data.split(digits.labels, 4)[1])


def test_shards_are_equal_disjoint_and_mixed(digits):
    train, _ = data.split(digits.labels, seed=0)
    first, second = (data.shard(train, i, 2) for i in range(2))
    assert len(first) == len(second) >= len(train) // 2
    assert not set(first.tolist()) & set(second.tolist())
    assert digits.labels[first].bincount().min() > 60


def test_batches_cover_the_shard_and_repeat_with_the_seed(digits):
    part = digits.take(torch.arange(100))
    once, again = (data.batches(part, 32, seed=5, epoch=2) for _ in range(2))
    assert [len(batch) for batch in once] == [32, 32, 32, 4]
    assert all(torch.equal(a.images, b.images) for a, b in zip(once, again, strict=True))
    labels = torch.cat([batch.labels for batch in once])
    assert torch.equal(labels.bincount(), part.labels.bincount())


def test_shift_moves_by_at_most_one_pixel():
    image = torch.zeros(50, 1, 8, 8)
    image[:, 0, 4, 4] = 1
    moved = data.shift(image, torch.Generator().manual_seed(0))
    places = {tuple(place) for place in moved.nonzero()[:, 2:].tolist()}
    assert moved.sum() == 50
    assert places == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}


def test_rounds_add_up_and_take_turns():
    rounds = Rounds(2)
    second = rounds.enter(1, [torch.tensor(2.0)])
    assert not second.done()
    first = rounds.enter(0, [torch.tensor(1.0)])
    assert first.done() and first.wait()[0] == 3
    assert not second.done()
    left = rounds.leave(0)
    assert second.done() and second.wait()[0] == 3
    assert not left.done()
    assert rounds.leave(1).done() and left.done()
    assert rounds.count_rounds() == 1
    assert not rounds.enter(0, [torch.tensor(1.0)]).done()


def test_command_line_survives_the_way_to_the_workers(tmp_path):
    line = ["--short", "--backend", "TENSORPIPE", "--out", str(tmp_path), "--seed", "7", "--ddp"]
    settings = config.parse(line, "test")
    assert (settings.epochs, settings.threshold) == (6, 0.90)
    assert config.parse(config.to_arguments(settings), "test") == settings


def some_results(out: Path, traffic: results.Traffic) -> results.Results:
    losses = [2.0, 1.0, 0.5, 0.25]
    phases = [[0.001] * len(PHASES)] * len(losses)
    trainers = [Report(719, list(losses), phases, payload=4_000_000) for _ in config.TRAINERS]
    return results.Results(
        config=config.parse(["--out", str(out)], "test"),
        seconds=1.5,
        accuracies=[0.5, 0.96],
        mistakes=[results.Mistake(torch.zeros(8, 8), 3, 8)],
        trainers=trainers,
        tested=359,
        evaluator_payload=(1_000_000, 20_000),
        parameters=(4_800, 66_954),
        rounds=4,
        traffic=traffic,
    )


def test_report_says_when_bytes_are_an_estimate(tmp_path):
    outcome = some_results(tmp_path, {name: {} for name in config.WORKERS})
    moved = outcome.moved()
    assert sum(pair[0] for pair in moved.values()) == sum(pair[1] for pair in moved.values())
    text = table.table(outcome)
    assert "an estimate from tensor sizes" in text
    assert "96.00% (1 of 359 wrong); 97% asked for, NOT reached" in text
    assert "5.0 ms median" in text
    assert all(name in text for name in config.WORKERS)


def test_report_prefers_what_the_agents_counted(tmp_path):
    traffic = {name: {"a": (1_000_000, 2_000_000), "b": (0, 5)} for name in config.WORKERS}
    outcome = some_results(tmp_path, traffic)
    assert outcome.moved()["server"] == (1_000_000, 2_000_005)
    assert "4.0 MB, counted by the agents" in table.table(outcome)


def test_report_writes_its_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    report.write(some_results(tmp_path / "new", {}))
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert '"passed": false' in (tmp_path / "new" / "results.json").read_text()
    assert "trainer1" in capsys.readouterr().out


def test_plot_of_a_single_epoch(tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw([1.0], [1.0], [], tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


def losses_of_one_process(digits: data.Digits, settings: config.Config) -> list[float]:
    """What training gives without any RPC: both trainers' batches put together, one optimizer."""
    train, _ = data.split(digits.labels, settings.seed)
    shards = [digits.take(data.shard(train, i, 2)) for i in range(2)]
    whole = torch.nn.Sequential(FrontEnd(settings.seed), Classifier(settings.seed + 1))
    optimizer = torch.optim.SGD(whole.parameters(), settings.lr, momentum=settings.momentum)
    losses = []
    for epoch in range(settings.epochs):
        seeds = [settings.seed * 2 + i for i in range(2)]
        parts = [data.batches(shards[i], settings.batch, seeds[i], epoch) for i in range(2)]
        for pair in zip(*parts, strict=True):
            images = torch.cat([batch.images for batch in pair])
            labels = torch.cat([batch.labels for batch in pair])
            loss = torch.nn.functional.cross_entropy(whole(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("more", [[], ["--ddp"]], ids=["rpc alone", "with DDP"])
def test_four_processes_learn_what_one_would(digits, tmp_path, more):
    line = ["--backend", BACKEND, "--out", str(tmp_path), "--epochs", "2", "--threshold", "0"]
    line += more
    command = [sys.executable, "-m", "examples.digits.launch", *line]
    subprocess.run(command, cwd=ROOT, check=True, timeout=100)
    figures = json.loads((tmp_path / "results.json").read_text())
    # The last epoch of so short a run is the one with a tenth of the learning rate.
    settings = dataclasses.replace(config.parse(line, "test"), epochs=1)
    expected = losses_of_one_process(digits, settings)
    assert figures["loss_by_step"][: len(expected)] == pytest.approx(expected, abs=1e-5)
    assert figures["ddp"] == bool(more)
    assert figures["bytes_are"] == ("measured" if BACKEND == "WEFT" else "estimated")
    assert (tmp_path / "loss.png").exists()


def descendants(pid: int) -> Iterator[int]:
    """The processes below this one, as the kernel knows them now."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def test_losing_a_trainer_ends_the_run(tmp_path):
    """kill -9 of one process: everything ends, soon, and the launcher says that it failed."""
    line = ["-m", "examples.digits.launch", "--backend", BACKEND, "--out", str(tmp_path)]
    run = subprocess.Popen(
        [sys.executable, *line, "--epochs", "500"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    bound = threading.Timer(75, run.terminate)
    bound.start()
    seen, lost = [], None
    try:
        for text in run.stdout:
            seen.append(text)
            if text.startswith("epoch") and lost is None:
                workers = list(descendants(run.pid))
                lost = next(pid for pid in workers if is_rank(pid, 2))
                os.kill(lost, signal.SIGKILL)
        status = run.wait(timeout=60)
    finally:
        bound.cancel()
        run.terminate()  # it ends its workers, if they are still there
        run.wait(timeout=40)
    assert lost is not None, "".join(seen)
    assert status == 1
    assert "the run failed" in seen[-1]
    assert not [pid for pid in workers if is_rank(pid, 0) or is_rank(pid, 3)]


def is_rank(pid: int, rank: int) -> bool:
    """Whether this is a live worker of that rank."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"RANK=%d" % rank in variables
