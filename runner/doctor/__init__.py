"""Does it work here, and do its limits hold? Answers are values; printing them is not its matter.

    check      what an answer is
    machine    this machine and its daemon, looked at from outside
    probes     what an agent could try, and what must come of it
    doctor     sessions opened to try it in; everything in order

What can be tried is tried, in containers of its own: a limit that Docker accepts is not yet
one that the kernel enforces. It changes nothing but what any session changes, and repairs
nothing.
"""

from runner.doctor.check import Check, State
from runner.doctor.doctor import examine

__all__ = ["Check", "State", "examine"]
