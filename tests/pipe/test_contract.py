"""Construction, attributes and state: what programs written for torch.distributed.pipeline.sync rely on."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from pipe_models import assert_same, make_pipe, mlp
from torch import nn
from torch.distributed.rpc import RRef
from worker_models import Migrates

import weft
import weft.pipe
from weft.pipe import NoChunk, Pipe, WithDevice
from weft.pipe._partition import check_shared_parameters
from weft.pipe.skip import skippable


def test_rpc_comes_first():
    code = (
        "from torch import nn\nimport weft\n"
        "try:\n  weft.Pipe(nn.Linear(1, 1), chunks=0, checkpoint='no')\n"
        "except RuntimeError as error:\n  assert 'initialize RPC' in str(error), error\n"
        "else:\n  raise SystemExit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_package_is_there_before_a_pipe_is():
    code = "import weft\nassert weft.pipe.is_recomputing() is False"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.usefixtures("alone")
class TestConstruction:
    def test_checks_in_upstreams_order(self):
        twice = nn.Linear(1, 1)
        with pytest.raises(ValueError, match="number of chunks must be positive integer"):
            Pipe(nn.Linear(1, 1), chunks=0, checkpoint="sometimes")
        with pytest.raises(ValueError, match="number of chunks must be positive integer"):
            Pipe(nn.Sequential(), chunks=-1)
        with pytest.raises(ValueError, match="not one of 'always', 'except_last', or 'never'"):
            Pipe(nn.Linear(1, 1), checkpoint="sometimes")
        with pytest.raises(TypeError, match=r"module must be nn\.Sequential to be partitioned"):
            Pipe(nn.Linear(1, 1))
        with pytest.raises(ValueError, match="duplicate children"):
            Pipe(nn.Sequential(twice, twice))
        mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
        with pytest.raises(ValueError, match="all parameters on a single device"):
            Pipe(nn.Sequential(mixed))
        with pytest.raises(TypeError, match="pairs of stash and pop do not match"):
            Pipe(nn.Sequential(skippable(stash=["x"])(nn.Identity)(), mixed))
        for chunks in ("3", 2.5):
            with pytest.raises(TypeError, match="chunks must be an int"):
                Pipe(nn.Sequential(), chunks=chunks)
        assert Pipe(nn.Sequential(), chunks=3.0).chunks == 3

    @pytest.mark.parametrize("after", [(), ("meta",)], ids=["meta-cpu", "meta-cpu-meta"])
    def test_a_cpu_stage_beside_meta_ones_is_refused(self, after):
        meta, between = nn.Linear(1, 1, device="meta"), nn.ReLU()
        last = [nn.Linear(1, 1, device=device) for device in after]
        x = torch.ones(1, 1, device="meta")
        with pytest.raises(ValueError, match=r"partition 1 is not on meta.*WithDevice\(child, "):
            Pipe(nn.Sequential(meta, between, *last))(x)
        mended = Pipe(nn.Sequential(meta, WithDevice(between, "meta"), *last))
        assert mended(x).local_value().device.type == "meta"

    def test_layers_may_be_replaced_and_partitions_may_not(self):
        pipe = copy.deepcopy(Pipe(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), chunks=2))
        pipe.partitions[0][0] = nn.Identity()
        assert pipe(torch.ones(2, 2)).local_value().eq(1).all()
        for partitions in ([nn.Sequential(nn.Linear(2, 2))], [*pipe.partitions, nn.Sequential()]):
            changed = copy.deepcopy(pipe)
            changed.partitions = nn.ModuleList(partitions)
            with pytest.raises(RuntimeError, match="the partitions of this Pipe were replaced"):
                changed(torch.ones(2, 2))

    def test_a_sequential_that_does_more_than_its_layers(self):
        """Its layers are called one by one, so what else it does would silently not happen."""

        class Doubled(nn.Sequential):
            def forward(self, x):
                return 2 * super().forward(x)

        class Named(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(1, 1), nn.Tanh())

        def hooked():
            module = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
            module.register_forward_hook(lambda module, inputs, output: 2 * output)
            return module

        def pre_hooked():
            module = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
            module.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
            return module

        def patched():
            module = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
            module.forward = lambda x: 2 * x
            return module

        def with_parameter():
            module = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
            module.register_parameter("unused", nn.Parameter(torch.ones(1)))
            return module

        x = torch.ones(4, 1)
        doubled = Doubled(nn.Linear(1, 1), nn.Tanh())
        for module in (doubled, hooked(), pre_hooked(), patched(), with_parameter()):
            with pytest.raises(TypeError, match=r"make it a layer of another nn.Sequential$"):
                Pipe(module)
            plain = nn.Sequential(module, nn.Linear(1, 1))
            pipe = Pipe(plain, chunks=2)
            assert len(pipe) == 2
            assert pipe.plain_state_dict().keys() == plain.state_dict().keys()
            assert_same(pipe(x).local_value(), plain(x))
        assert len(Pipe(Named())) == len(Pipe(nn.Sequential(Named()))) == 2

    def test_a_batch_norm_in_two_partitions(self):
        """Their threads would update its running statistics in any order."""
        norm = nn.BatchNorm1d(1)
        first, second = (nn.Sequential(nn.Sequential(nn.Linear(1, 1), norm)) for _ in range(2))
        x = torch.ones(4, 1)
        pipe = Pipe(nn.Sequential(first, second), 2)
        with pytest.raises(ValueError, match=r"'0\.1' of partition 1 is a batch norm of another"):
            pipe(x)
        with pytest.raises(ValueError, match="is a batch norm of another partition"):
            Pipe(nn.Sequential(first, second), 2, deferred_batch_norm=True)(x)
        assert pipe.eval()(x).local_value().shape == (4, 1)  # nothing is updated
        Pipe(nn.Sequential(first, second))(x)  # nor at the same time
        assert len(Pipe(nn.Sequential(nn.Sequential(norm, nn.Linear(1, 1), nn.Tanh())))) == 3
        norm = nn.BatchNorm1d(1, track_running_stats=False)
        Pipe(nn.Sequential(*(nn.Sequential(nn.Linear(1, 1), norm) for _ in range(2))))

    def test_a_parameter_on_two_devices(self):
        """Only accelerators bring that about: a module that is moved may keep its Parameters."""
        one, other = nn.Linear(1, 1), nn.Linear(1, 1)
        other.weight = one.weight
        meta = torch.device("meta")
        check_shared_parameters([one, other], [meta, meta])
        with pytest.raises(ValueError, match="duplicate parameters on distinct devices"):
            check_shared_parameters([one, other], [torch.device("cpu"), meta])
        assert len(Pipe(nn.Sequential(one, other))) == 2

    def test_attributes(self):
        a, b, c = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)
        pipe = Pipe(nn.Sequential(a, nn.Sequential(b, c)), chunks=2, checkpoint="always")
        assert (pipe.chunks, pipe.checkpoint) == (2, "always")
        assert pipe.devices == [torch.device("cpu")] * 2
        assert [len(partition) for partition in pipe.partitions] == [1, 2]
        assert len(pipe) == 3
        assert list(pipe) == [a, b, c]
        assert (pipe[0], pipe[1], pipe[-1], pipe[-3]) == (a, b, c, a)
        for index in (3, -4):
            with pytest.raises(IndexError):
                pipe[index]
        inner = nn.Sequential(b)
        assert list(Pipe(nn.Sequential(nn.Sequential(inner, c)))) == [inner, c]  # one level
        assert weft.Pipe is weft.pipe.Pipe
        assert weft.WithDevice is weft.pipe.WithDevice
        assert isinstance(pipe(torch.ones(2, 1)), RRef)

    def test_accelerator_neighbours_share_a_partition(self):
        meta = nn.Sequential(
            nn.Linear(2, 2, device="meta"),
            WithDevice(nn.ReLU(), "meta"),
            nn.Linear(2, 2, device="meta"),
            nn.ReLU(),
        )
        pipe = Pipe(meta)
        assert [len(partition) for partition in pipe.partitions] == [3, 1]
        assert [device.type for device in pipe.devices] == ["meta", "cpu"]

    def test_moving_is_denied(self):
        pipe = Pipe(mlp())
        for move in (
            pipe.cuda,
            pipe.cpu,
            lambda: pipe.to("cpu"),
            lambda: pipe.to(torch.device("cpu")),
            lambda: pipe.to(0),
            lambda: pipe.to(torch.ones(1)),
            lambda: pipe.to(device="cpu"),
            lambda: pipe.to_empty(device="meta"),
        ):
            with pytest.raises(TypeError, match="denied to move parameters and buffers"):
                move()
        assert pipe.to(torch.float64)[0].weight.dtype == torch.float64
        assert pipe.double() is pipe


@pytest.mark.usefixtures("alone")
class TestState:
    @staticmethod
    def model():
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), nn.Tanh()
        )

    def test_keys(self):
        pipe = Pipe(self.model())
        assert "partitions.0.0.weight" in pipe.state_dict()
        assert "partitions.1.1.bias" in pipe.state_dict()
        other = Pipe(self.model())
        other.load_state_dict(pipe.state_dict())

    def test_plain_layout_both_ways(self):
        plain = self.model()
        pipe = Pipe(copy.deepcopy(plain))
        with torch.no_grad():
            for parameter in pipe.parameters():
                parameter.add_(1)
        again = self.model()
        again.load_state_dict(pipe.plain_state_dict())
        assert_same(again[1][1].weight, pipe[2].weight)
        pipe.load_state_dict(plain.state_dict())
        assert_same(pipe[2].weight, plain[1][1].weight)
        outer = nn.ModuleDict({"pipe": Pipe(self.model())})
        outer.load_state_dict({f"pipe.{k}": v for k, v in plain.state_dict().items()})
        assert_same(outer["pipe"][0].weight, plain[0].weight)
        with pytest.raises(RuntimeError, match="Missing key"):
            pipe.load_state_dict({})

    def test_both_layouts_have_the_versions_of_the_layers(self):
        def model():
            return nn.Sequential(Migrates(), nn.Sequential(nn.Tanh(), Migrates()))

        plain, pipe = model(), Pipe(model())
        pipe.load_state_dict(pipe.state_dict())
        assert_same(pipe[0].weight, plain[0].weight)
        state = plain.state_dict()
        pipe.load_state_dict(state)
        assert_same(pipe[2].weight, plain[1][1].weight)
        plain.load_state_dict(state)
        plain.load_state_dict(pipe.plain_state_dict())
        assert_same(plain[1][1].weight, torch.ones(3))
        assert pipe.plain_state_dict()._metadata["1.1"] == {"version": 2}
        outer = nn.ModuleDict({"pipe": pipe})
        outer.load_state_dict(outer.state_dict())
        assert_same(pipe[2].weight, torch.ones(3))

    def test_copies(self):
        pipe = make_pipe(mlp(), "threads", chunks=2)
        x = torch.randn(4, 4)
        expected = pipe(x).local_value()
        saved = io.BytesIO()
        torch.save(pipe, saved)
        saved.seek(0)
        for other in (
            copy.deepcopy(pipe),
            pickle.loads(pickle.dumps(pipe)),
            torch.load(saved, weights_only=False),
        ):
            assert other[0].weight is not pipe[0].weight
            output = other(x).local_value()
            assert_same(output, expected)
            output.sum().backward()
            assert pipe[0].weight.grad is None
            other.load_state_dict(mlp().state_dict())

    def test_no_chunk_shows_its_tensor(self):
        x = torch.ones(2)
        assert NoChunk(x).tensor is x
