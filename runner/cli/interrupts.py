"""Ending early: what a signal means for work under way.

The first signal cancels the work, which ends the call with all its processes and closes what
was opened. A second one is only acknowledged, since leaving now would leave a container
behind; a third ends the process at once, and the next start cleans up after it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The interruption of one piece of work, once there is one."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.current_task()
        self._finishing = False
        self._signals = 0
        self.status: int | None = None
        """What to exit with, once something ended the work early."""

    def watch(self) -> None:
        """Begin to take signals. One that is ignored (`nohup`) stays so."""
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._take, number)

    def unwatch(self) -> None:
        """Give the signals back."""
        for number in ENDING:
            self._loop.remove_signal_handler(number)

    def finishing(self) -> None:
        """From here on there is only tidying up to do, which a signal does not interrupt."""
        self._finishing = True

    def end(self, status: int) -> None:
        """Cancel the work, and exit with this status. Only the first cause counts."""
        if self.status is None:
            self.status = status
            if not self._finishing and self._work is not None:
                self._work.cancel()

    def _take(self, number: int) -> None:
        self._signals += 1
        self.end(128 + number)
        if self._signals == 2:
            self._say("cleaning up; once more to leave that to the next start")
            self.unwatch()


def run(work: Callable[[Interrupts], Awaitable[int]], *, say: Callable[[str], None]) -> int:
    """Run work in an event loop of its own.

    Args:
        work: Returns an exit status. It may call the methods of what it gets.
        say: Tells the user something.

    Returns:
        Its status, or that of what ended it early: 128 + n for signal n.
    """

    async def supervised() -> int:
        interrupts = Interrupts(say)
        interrupts.watch()
        try:
            status = await work(interrupts)
        except asyncio.CancelledError:
            if interrupts.status is None:
                raise
            status = interrupts.status
        finally:
            interrupts.unwatch()
        return status if interrupts.status is None else interrupts.status

    return asyncio.run(supervised())
