"""Jobs: calls that are made at times of a schedule, each run in a session of its own.

    schedule   when: cron expressions in time zones, and what times that passed mean. Pure
    job        a job from words, checked
    running    one run: a session, the calls in it, how it ended
    delivery   where a run's result goes: a file, a webhook
    daemon     Daemon: waits for times to come, runs, and ends well

What is kept of jobs and runs, and which of several processes does what, is the store's
matter. What a run's calls may do is decided by a policy, as for any call.
"""

from runner.cron.daemon import Clock, Daemon, run_now
from runner.cron.delivery import document
from runner.cron.job import make_job
from runner.cron.schedule import next_time

__all__ = ["Clock", "Daemon", "document", "make_job", "next_time", "run_now"]
