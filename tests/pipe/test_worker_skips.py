"""Skip connections of pipelines over workers, which go from the one stage's worker to the other's."""

from __future__ import annotations

import pytest
import torch
import worker_models as models
from torch import nn
from worker_pipes import (
    CROSS_ENTROPY,
    check_gradients,
    graphs_held,
    held_anywhere,
    pipe_of_layers,
)
from worker_programs import WIDTH, Pops, Stashes

from weft.pipe.skip import Namespace

SCHEDULES = ("gpipe", "1f1b", "zb", "interleaved")


def pairs(what: str) -> list[nn.Module]:
    """Two connections of one name, one inside the other; the outer one from the first layer."""
    torch.manual_seed(0)
    outer, inner = Namespace(), Namespace()
    return [
        Stashes(what).isolate(outer),
        Stashes(what).isolate(inner),
        Pops().isolate(inner),
        Pops().isolate(outer),
    ]


def trains(what: str, places: str, schedule: str, checkpoint: str, way: str) -> None:
    layers = pairs(what)
    plain = nn.Sequential(*(models.copied(layer) for layer in layers))
    pipe = pipe_of_layers(layers, places, 4, schedule, checkpoint)
    torch.manual_seed(1)
    inputs, targets = torch.randn(10, WIDTH), torch.randint(WIDTH, (10,))
    for _ in range(2):
        if way == "step":
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        else:
            CROSS_ENTROPY(pipe(inputs).to_here(), targets).backward()
        CROSS_ENTROPY(plain(inputs), targets).backward()
    check_gradients(pipe, plain)
    pipe.eval()
    torch.testing.assert_close(pipe(inputs).to_here(), plain(inputs))
    assert held_anywhere(pipe) == graphs_held(pipe) == 0
    pipe.close()


@pytest.mark.parametrize("way", ["step", "loss"])
@pytest.mark.parametrize("what", ["output", "input", "detached", "none"])
@pytest.mark.parametrize(
    ("places", "schedule", "checkpoint"),
    [
        ("0122", "gpipe", "never"),
        ("0120", "1f1b", "except_last"),
        ("1201", "1f1b", "always"),
        ("0120", "zb", "never"),
        ("1212", "interleaved", "always"),
        ("1111", "gpipe", "always"),
    ],
)
def test_skips_between_workers(group, what, places, schedule, checkpoint, way):
    group[0].call(trains, what, places, schedule, checkpoint, way)


def of_remote_modules() -> None:
    import weft

    first = weft.RemoteModule("worker1/cpu", Stashes, ("output",))
    last = weft.RemoteModule("worker2/cpu", Pops)
    pipe = weft.Pipe(nn.Sequential(first, nn.Tanh(), last), chunks=3, schedule="1f1b")
    plain = nn.Sequential(Stashes("output"), nn.Tanh(), Pops())
    plain.load_state_dict(pipe.state_dict())
    inputs, targets = torch.randn(10, WIDTH), torch.randint(WIDTH, (10,))
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    CROSS_ENTROPY(plain(inputs), targets).backward()
    check_gradients(pipe, plain)
    pipe.close()


def test_skips_of_remote_modules(group):
    group[0].call(of_remote_modules)


def do_not_match(case: str) -> str:
    import weft

    layers = {
        "no pop": [Stashes("output"), nn.Tanh()],
        "no stash": [nn.Tanh(), Pops()],
        "order": [Pops(), Stashes("output")],
        "twice": [Stashes("output"), Pops(), Pops()],
    }[case]
    placed = [weft.WithDevice(one, f"worker{1 + at % 2}/cpu") for at, one in enumerate(layers)]
    with pytest.raises(TypeError) as caught:
        weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="1f1b")
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no pop", "no module declared 'skip' as poppable but stashed (by '0')"),
        ("no stash", "'1' declared 'skip' as poppable but it was not stashed"),
        ("order", "'0' declared 'skip' as poppable but it was not stashed"),
        ("twice", "'2' redeclared 'skip' as poppable but not isolated by namespace"),
    ],
)
def test_skips_that_do_not_match_are_refused(group, case, said):
    assert said in group[0].call(do_not_match, case)


def changed_in_place(places: str) -> str:
    layers = [models.StashesData(), models.AddsInPlace(), models.PopsAndAdds()]
    pipe = pipe_of_layers(layers, places, 2, "gpipe", "never")
    pipe.eval()
    try:
        found = pipe(torch.zeros(4, 3)).to_here()
    except RuntimeError as error:
        return str(error)
    finally:
        pipe.close()
    assert torch.equal(found, torch.full((4, 3), 4.0))  # as the layers one after the other
    return "equal"


@pytest.mark.parametrize("places", ["000", "012", "001", "011", "010"])
def test_a_change_in_place_of_what_was_stashed_is_seen_or_refused(group, places):
    said = group[0].call(changed_in_place, places)
    assert said == "equal" or "changes one of its inputs in place" in said
    assert (said == "equal") == (places in ("000", "001"))


def changes_what_it_popped(chunks: int) -> None:
    torch.manual_seed(0)
    layers = [models.StashesDoubled(), nn.Linear(4, 4), models.DoublesInPlace()]
    inputs, target = torch.randn(12, 4), torch.zeros(12, 4)
    wanted = torch.nn.functional.mse_loss(layers[1](inputs + 1) + inputs * 4, target)
    pipe = pipe_of_layers(layers, "010", chunks, "gpipe", "never")
    assert torch.allclose(pipe.step(inputs, target, loss=nn.MSELoss()), wanted)
    pipe.close()


@pytest.mark.parametrize("chunks", [2, 6])
def test_what_another_stage_of_the_worker_gave_may_be_changed(group, chunks):
    group[0].call(changes_what_it_popped, chunks)
