"""Turns Bazel's output on stdin into a bar with the time left; shows what is none of its progress.

Bazel counts the actions that are done against all of them: `[90 / 251] Compiling x.cpp; …`. Those
before the first compiler take no time (links, folders) and do not count for the rate.
"""

import re
import sys
import time

ACTIONS = re.compile(r"^\[([\d,]+) / ([\d,]+)\]")
# What Bazel says about itself: of use to nobody who waits.
TALK = re.compile(r"^(\s*$|INFO:|Loading:|Analyzing:|Starting local Bazel|DEBUG:|Target |  bazel-)")
ELAPSED = re.compile(r"^INFO: Elapsed time: ([\d.]+)s")
QUIET_SECONDS = 20  # between two lines where there is no terminal
WIDTH = 24


def remaining(seconds: float) -> str:
    """The time left, in words that claim no more precision than it has."""
    if seconds < 90:
        return "about a minute left"
    return f"about {round(seconds / 60)} minutes left"


class Bar:
    """One line that is written again on a terminal, and now and then a new line elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.began = time.monotonic()
        self.total = 0
        self.base = (0, self.began)  # actions done when compiling began, and when
        self.shown = self.began
        self.open = False  # whether the line on the terminal has no end yet

    def update(self, done: int, total: int) -> None:
        """Shows how far the build is."""
        now = time.monotonic()
        if total > 2 * self.total:  # the first counts are of a few actions, before all are known
            self.total, self.base = total, (done, now)
        fresh, took = done - self.base[0], now - self.base[1]
        left = remaining((total - done) * took / fresh) if fresh > 5 and took > 10 else ""
        full = WIDTH * done // max(total, 1)
        text = f"[weft] {'#' * full}{'.' * (WIDTH - full)} {done} of {total}  {left}"
        if self.terminal:
            sys.stderr.write(f"\r{text:<78}")
            self.open = True
        elif now - self.shown >= QUIET_SECONDS:
            sys.stderr.write(f"{text.rstrip()}\n")
            self.shown = now
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line of Bazel's that is worth reading: a warning, an error, a compiler's words."""
        self.close()
        sys.stderr.write(text)
        sys.stderr.flush()

    def finish(self, seconds: float) -> None:
        """Says how long it took, where it was long enough to be shown."""
        if self.open or self.shown > self.began:
            self.say(f"[weft] the build took {seconds:.0f} s\n")

    def close(self) -> None:
        """Ends the line that is open."""
        if self.open:
            sys.stderr.write("\n")
            self.open = False


def main() -> None:
    """Reads to the end of stdin; the build's own exit status is for the shell to see."""
    bar = Bar()
    for line in sys.stdin:
        if counts := ACTIONS.match(line):
            done, total = (int(text.replace(",", "")) for text in counts.groups())
            bar.update(done, total)
        elif ended := ELAPSED.match(line):
            bar.finish(float(ended[1]))
        elif not TALK.match(line):
            bar.say(line)
    bar.close()


if __name__ == "__main__":
    main()
