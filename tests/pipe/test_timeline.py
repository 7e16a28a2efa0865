"""Timelines made from known events: figures, the ideal schedule, the picture and the trace."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import perfetto_engine
import pytest

from weft.pipe._timeline.events import Event, RecordedMiniBatch, gpipe, mini_batches
from weft.pipe._timeline.recording import Timeline, recording

MS = 1_000_000


def lasting(micro_batches, checkpointed=0):
    times = {("forward", i): 2 * MS for i in range(micro_batches)}
    times |= {("backward", i): 4 * MS for i in range(micro_batches)}
    return times | {("recompute", i): 2 * MS for i in range(checkpointed)}


def on_schedule(stages, micro_batches, checkpointed=0, begin=10**15, pause=5 * MS):
    """What an engine without any cost would have recorded."""
    tasks = gpipe(stages, micro_batches, lasting(micro_batches, checkpointed), begin, pause)
    return [(*task[:5], task.stage + 1) for task in tasks]


def recorded(events, lanes=()):
    timeline = Timeline(lanes)
    timeline.close(mini_batches(Event(*event) for event in events))
    return timeline


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_the_ideal_schedule_has_the_ideal_bubble(stages, micro_batches):
    for checkpointed in (0, micro_batches):
        figures = recorded(on_schedule(stages, micro_batches, checkpointed)).figures
        assert figures.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
        assert figures.bubble == pytest.approx(figures.ideal_bubble)
        assert (figures.stages, figures.micro_batches) == (stages, micro_batches)


def test_no_two_tasks_of_a_stage_overlap_and_order_is_kept():
    tasks = list(gpipe(3, 4, lasting(4, 3)))
    assert len(tasks) == 3 * (4 + 3 + 4)
    for stage in range(3):
        own = sorted((t for t in tasks if t.stage == stage), key=lambda t: t.begin)
        assert all(a.end <= b.begin for a, b in pairwise(own))
        backward = [t.micro_batch for t in own if t.kind == "backward"]
        assert backward == [3, 2, 1, 0]
    first = {(t.stage, t.micro_batch): t for t in tasks if t.kind == "forward"}
    assert all(first[s, i].end <= first[s + 1, i].begin for s in range(2) for i in range(4))


def test_figures_of_an_uneven_run():
    events = [
        (0, 0, "forward", 0, 4 * MS, 1),
        (1, 0, "copy", 4 * MS, 5 * MS, 2),
        (1, 0, "forward", 5 * MS, 10 * MS, 2),
        (1, 0, "backward", 100 * MS, 106 * MS, 2),
        (0, 0, "backward", 106 * MS, 110 * MS, 1),
    ]
    figures = recorded(events).figures
    assert figures.seconds == pytest.approx(20e-3)  # the pause in between is the caller's
    assert figures.busy == (pytest.approx(8 / 20), pytest.approx(11 / 20))
    assert figures.bubble == pytest.approx(1 - 19 / 40)
    assert figures.mean_ms == {"forward": pytest.approx(4.5), "backward": pytest.approx(5)}
    assert "2 stages, 1 micro-batches: 20 ms, bubble 52.5% (ideal 50.0%)" in str(figures)


def test_ideal_of_a_measured_run_keeps_the_work():
    batch = recorded(on_schedule(3, 5, 4)).typical
    ideal = batch.ideal()
    assert ideal.figures().bubble == pytest.approx(batch.figures().bubble)
    assert sum(e.end - e.begin for e in ideal.events) == sum(e.end - e.begin for e in batch.events)


def test_a_recording_is_cut_into_mini_batches_and_the_median_is_shown():
    events = []
    for number, pause in enumerate((0, 1, 2)):
        one = on_schedule(2, 2 + number, begin=number * 10**9, pause=pause * MS)
        events += one
    timeline = recorded(reversed(events))
    assert [batch.micro_batches for batch in timeline.mini_batches] == [2, 3, 4]
    assert timeline.figures.micro_batches == 3


def test_what_began_before_the_recording_is_left_out():
    late = [(0, 0, "backward", 0, 5, 1)]
    assert mini_batches(Event(*event) for event in late) == []
    assert len(recorded([*late, *on_schedule(2, 2)]).mini_batches) == 1


def test_forward_alone():
    events = [event for event in on_schedule(2, 4) if event[2] == "forward"]
    assert recorded(events).figures.bubble == pytest.approx(1 / 5)
    assert isinstance(recorded(events).typical.ideal(), RecordedMiniBatch)


def test_errors_say_what_to_do(tmp_path):
    timeline = Timeline()
    with pytest.raises(ValueError, match="the recording goes on"):
        timeline.save(tmp_path / "run.svg")
    with pytest.raises(ValueError, match="nothing was recorded"):
        recorded([]).figures  # noqa: B018
    with pytest.raises(ValueError, match=r"saved as \.svg or \.json, not as 'run\.png'"):
        recorded(on_schedule(2, 2)).save(tmp_path / "run.png")


CASES = {"small": (2, 4, 3), "wide": (4, 64, 64), "one": (1, 1, 0), "deep": (24, 8, 0)}


@pytest.mark.parametrize("case", CASES)
def test_the_picture_is_well_formed_and_nothing_lies_outside(case, tmp_path):
    stages, micro_batches, checkpointed = CASES[case]
    timeline = recorded(on_schedule(stages, micro_batches, checkpointed), ["<cpu>"] * stages)
    text = timeline.save(tmp_path / "run.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    name = "{http://www.w3.org/2000/svg}"
    bars = [r for r in root.iter(f"{name}rect") if r.find(f"{name}title") is not None]
    tasks = stages * (2 * micro_batches + checkpointed)
    assert len([bar for bar in bars if "micro-batch" in bar[0].text]) == 2 * tasks
    for bar in bars:
        x, y, w, h = (float(bar.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and w > 0 and x + w <= width and y >= 0 and y + h <= height
    for label in root.iter(f"{name}text"):
        assert 0 <= float(label.attrib["y"]) <= height
    shown = " ".join(label.text for label in root.iter(f"{name}text"))
    assert f"measured: bubble {timeline.figures.bubble:.1%}" in shown
    assert f"on paper, stages of one length: bubble {timeline.figures.ideal_bubble:.1%}" in shown
    assert ("recompute" in shown) == (checkpointed > 0)


def test_axis_labels_do_not_overlap(tmp_path):
    text = recorded(on_schedule(2, 4)).save(tmp_path / "run.svg").read_text(encoding="utf-8")
    ticks = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" font-size="11" fill="#5f6368"', text)
    for height in {y for _, y in ticks}:
        places = sorted(float(x) for x, y in ticks if y == height)
        assert all(b - a > 50 for a, b in pairwise(places))


def test_the_trace_has_every_event(tmp_path):
    events = on_schedule(2, 3, 2)
    timeline = recorded(events, ["stage 0 · cpu", "stage 1 · cuda:0"])
    data = json.loads(timeline.save(tmp_path / "run.json").read_text())
    bars = [record for record in data["traceEvents"] if record["ph"] == "X"]
    assert len(bars) == len(events)
    assert {"F0.mb0", "R1.mb1", "B1.mb2"} <= {bar["name"] for bar in bars}
    assert min(bar["ts"] for bar in bars) == 0
    assert sum(bar["dur"] for bar in bars) == pytest.approx(sum(e[4] - e[3] for e in events) / 1e3)
    names = [record["args"]["name"] for record in data["traceEvents"] if record["ph"] == "M"]
    assert names == ["weft.Pipe", "stage 0 · cpu", "stage 1 · cuda:0"]
    assert data["otherData"]["ideal_bubble"] == pytest.approx(1 / 4)


def test_perfetto_shows_the_trace(tmp_path):
    events = on_schedule(2, 3, 2)
    path = recorded(events, ["stage 0 · cpu", "stage 1 · cuda:0"]).save(tmp_path / "run.json")
    lanes, ((count,),) = perfetto_engine.ask(
        path,
        """select distinct process.name, thread.name from slice
        join thread_track on thread_track.id = slice.track_id join thread using (utid)
        join process using (upid) order by 2""",
        "select count(*) from slice",
    )
    assert lanes == [("weft.Pipe", "stage 0 · cpu"), ("weft.Pipe", "stage 1 · cuda:0")]
    assert count == len(events)


class Engine:
    """The two calls that a recording makes."""

    def __init__(self):
        self.on = False

    def start_recording(self):
        self.on = True

    def stop_recording(self):
        self.on = False
        return on_schedule(2, 2)


def test_a_recording_ends_when_its_body_fails():
    engine = Engine()
    with pytest.raises(KeyError), recording(engine, ["cpu", "cpu"]) as timeline:
        assert engine.on
        raise KeyError
    assert not engine.on
    assert timeline.lanes == ("stage 0 · cpu", "stage 1 · cpu") and len(timeline.mini_batches) == 1
