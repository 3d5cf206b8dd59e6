"""What a policy allows does under a real shell what the policy let it do, and no more.

`fuzz` says how; here it runs for a short while. That it finds something where there is something
to find is shown with filters that are known to be wrong.
"""

import random
from collections.abc import Iterator
from itertools import islice

import pytest

from runner import Runner, Session
from runner.policy import Policy
from tests.policy import fuzz

SCRIPTS = 750
"""With each of two seeds."""


@pytest.fixture(scope="module")
def session(docker_runner: Runner) -> Iterator[Session]:
    with docker_runner.session() as session:
        yield session


@pytest.fixture(scope="module")
def narrow() -> fuzz.Meaning:
    return next(meaning for meaning in fuzz.meanings() if meaning.name == "narrow")


@pytest.mark.docker
@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(10**9)], ids=["1", "any"])
def test_what_policies_allow_does_nothing_that_they_refuse(session: Session, seed: int) -> None:
    report = fuzz.run(session, SCRIPTS, seed)

    assert not report.findings, "\n".join(
        [f"for the same scripts once more: --seed {seed}", *map(str, report.findings[:10])]
    )
    assert report.generated == SCRIPTS
    assert report.some > 0.15 * SCRIPTS, report
    assert all(report.allowed[meaning.name] for meaning in fuzz.meanings()), report
    assert report.programs > report.some, report


@pytest.mark.docker
def test_every_known_way_around_a_filter_of_text_is_found(
    session: Session, narrow: fuzz.Meaning
) -> None:
    oracle = fuzz.Oracle(session)
    for judge in fuzz.CONTROLS.values():
        scripts = [script for script, by in fuzz.BYPASSES if by is judge]
        report = fuzz.Report()
        oracle.check(scripts, [narrow], judge, report)

        assert report.some == len(scripts), "a filter refuses what is known to get past it"
        missed = set(scripts) - {finding.script for finding in report.findings}
        assert not missed


@pytest.mark.docker
@pytest.mark.parametrize("name", fuzz.CONTROLS)
def test_the_fuzzer_finds_the_holes_of_a_filter_of_text(
    session: Session, narrow: fuzz.Meaning, name: str
) -> None:
    report = fuzz.Report()
    scripts = fuzz.Scripts(seed=7)
    # Not what any filter of text refuses, which is most.
    tried = [scripts.next() for _ in range(1500)]
    passed = [script for script in tried if fuzz.CONTROLS[name](narrow, script)][:80]
    fuzz.Oracle(session).check(passed, [narrow], fuzz.CONTROLS[name], report)

    assert report.findings, report


@pytest.mark.parametrize(
    ("script", "_"), fuzz.BYPASSES, ids=[script for script, _ in fuzz.BYPASSES]
)
def test_no_known_way_around_a_filter_of_text_is_one_around_a_policy(
    narrow: fuzz.Meaning, script: str, _: fuzz.Judge
) -> None:
    assert not fuzz.by_policy(narrow, script)


@pytest.mark.parametrize("script", fuzz.FOUND)
def test_what_the_fuzzer_found_once_is_refused_by_every_policy(script: str) -> None:
    assert not [meaning.name for meaning in fuzz.meanings() if fuzz.by_policy(meaning, script)]


def test_a_seed_says_which_scripts_there_are() -> None:
    def some(seed: int) -> list[str]:
        scripts = fuzz.Scripts(seed)
        return list(islice(iter(scripts.next, None), 50))

    assert some(5) == some(5)
    assert some(5) != some(6)
    assert len(set(some(5))) == 50


def test_what_is_written_down_is_compared_word_for_word() -> None:
    assert fuzz._fits(["ls", "a b"], ["ls", "a b"], open_ended=False)
    assert not fuzz._fits(["ls", "a b"], ["ls", "a", "b"], open_ended=False)
    assert not fuzz._fits(["ls"], ["ls", "x"], open_ended=False)
    assert fuzz._fits(["ls"], ["ls", "x"], open_ended=True)
    assert fuzz._fits(["cat", "*.py", "x"], ["cat", "a.py", "b.py", "x"], open_ended=False)
    assert not fuzz._fits(["cat", "*.py"], ["rm", "a.py"], open_ended=False)


def test_the_policies_that_are_tried_are_sound_themselves() -> None:
    for meaning in fuzz.meanings():
        assert isinstance(meaning.policy, Policy)
        assert meaning.policy.rule_set is not None
        assert not meaning.covers(["curl", "x"]) or meaning.refuses(["curl", "x"])
        assert meaning.refuses(["sudo", "ls"])
