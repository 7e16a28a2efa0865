"""Trains the model, shows how the loss falls, and lets it write a few lines.

    python -m examples.pipeline.train [--partitions N] [--chunks M] [--plain] [--timeline run.svg]

Exits with 0 only if the held-out text became less of a surprise than single letters make it.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.pipeline import config, model, text

Forward = Callable[[Tensor], Tensor]
SHOWN = 10  # lines of progress


def loss_of(forward: Forward, inputs: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy of the next character, in nats."""
    return functional.cross_entropy(forward(inputs).flatten(0, 1), wanted.flatten())


def rate(settings: config.Config, step: int) -> float:
    """The share of the learning rate at this step: up in the beginning, down to a tenth at the end."""
    return min((step + 1) / settings.warm_up, 1.0) * (1 - 0.9 * step / settings.steps)


def train(forward: Forward, learner: nn.Module, play: text.Text, settings: config.Config) -> float:
    """All steps; prints the loss as it falls and returns the median time of a step, in ms."""
    optimizer = torch.optim.AdamW(learner.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(settings, step))
    generator = torch.Generator().manual_seed(settings.seed)
    every = max(settings.steps // SHOWN, 1)
    losses, times = [], []
    for step in range(settings.steps):
        began = time.perf_counter()
        inputs, wanted = text.batch(play.train, settings.batch, settings.context, generator)
        loss = loss_of(forward, inputs, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
        if step == 0 or (step + 1) % every == 0:
            shown = statistics.fmean(losses[-every:])
            print(f"step {step + 1:4d}/{settings.steps}  loss {shown:.4f}", flush=True)
    return 1e3 * statistics.median(times)


@torch.no_grad()
def surprise(
    forward: Forward, learner: nn.Module, play: text.Text, settings: config.Config
) -> float:
    """The loss on the held-out text."""
    learner.eval()
    generator = torch.Generator().manual_seed(1)
    inputs, wanted = text.batch(play.held_out, 4 * settings.batch, settings.context, generator)
    result = loss_of(forward, inputs, wanted).item()
    learner.train()
    return result


def letters_alone(play: text.Text) -> float:
    """What the loss would be by the frequency of each character, without any context."""
    shares = play.train.bincount(minlength=len(play.alphabet)) / len(play.train)
    return -(shares * shares.clamp_min(1e-9).log()).sum().item()


@torch.no_grad()
def write(forward: Forward, learner: nn.Module, play: text.Text, settings: config.Config) -> str:
    """Lets the model go on from a heading, drawing every character from its scores."""
    learner.eval()
    generator = torch.Generator().manual_seed(settings.seed)
    written = play.encode("CORIOLANUS:\n")
    for _ in range(240):
        scores = forward(written[-settings.context :].unsqueeze(0))[0, -1] / 0.8
        following = torch.multinomial(scores.softmax(0), 1, generator=generator)
        written = torch.cat([written, following])
    return play.decode(written)


def run(settings: config.Config) -> int:
    """One run from beginning to end; returns the exit status."""
    play = text.load()
    net = model.transformer(
        len(play.alphabet),
        settings.context,
        settings.width,
        settings.heads,
        settings.blocks,
        settings.seed,
    )
    if settings.script:
        net = model.scripted(net)
    size = sum(parameter.numel() for parameter in net.parameters())
    print(f"{len(play.train):,} characters to learn from; {len(net)} layers, {size:,} parameters")
    with contextlib.ExitStack() as stack:
        learner: nn.Module = net
        forward: Forward = net
        if not settings.plain:
            from examples.pipeline import piped

            stack.enter_context(piped.alone())
            sample = play.train[: settings.batch * settings.context].view(settings.batch, -1)
            pipe, balance = piped.pipe(net, sample, settings)
            print(f"pipe: layers {balance}, {settings.chunks} chunks, checkpoint={pipe.checkpoint}")
            learner, forward = pipe, lambda inputs: pipe(inputs).local_value()
        milliseconds = train(forward, learner, play, settings)
        if settings.timeline is not None:
            draw(pipe, forward, play, settings)
        reached, bar = surprise(forward, learner, play, settings), letters_alone(play)
        print(f"held out: loss {reached:.4f}; by the frequency of letters alone {bar:.4f}")
        print(f"time per step: {milliseconds:.1f} ms median")
        print(f"---\n{write(forward, learner, play, settings)}\n---")
    return 0 if reached < bar else 1


def draw(pipe: nn.Module, forward: Forward, play: text.Text, settings: config.Config) -> None:
    """Records five more passes, forward and backward, and draws the median one."""
    generator = torch.Generator().manual_seed(settings.seed)
    with pipe.record() as timeline:
        for _ in range(5):
            inputs, wanted = text.batch(play.train, settings.batch, settings.context, generator)
            loss_of(forward, inputs, wanted).backward()
    print(f"{timeline.save(settings.timeline)}: {timeline.figures}")


def main(argv: list[str] | None = None) -> int:
    """Runs the example and judges its result."""
    # One thread per stage: the stages are what runs side by side.
    torch.set_num_threads(1)
    return run(config.parse(argv))


if __name__ == "__main__":
    sys.exit(main())
