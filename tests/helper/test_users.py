"""Who a program runs as, by files that may hold anything. What comes of it: see `test_users`."""

import os
from pathlib import Path

import pytest

from runner.helper import users
from runner.helper.users import STAY, NoUser, Switch, Users

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
me:x:1001:1002:Me,,,:/home/me:/bin/sh
homeless:x:7:7:::
short:x:5
:x:6:6::/:/bin/sh
minus:x:-1:0::/:/bin/sh
large:x:4294967295:0::/:/bin/sh
letters:x:one:0::/:/bin/sh
odd:x:\N{ARABIC-INDIC DIGIT ONE}:0::/:/bin/sh
me:x:0:0:a second one:/root:/bin/sh
"""
GROUP = """\
root:x:0:
me:x:1002:
team:x:50:you,me
staff:x:51:me
bad:x:-4:me
short:x:9
own:x:1002:me
"""
OWNER = (4321, 4322)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    monkeypatch.setattr(users, "PASSWD", str(tmp_path / "passwd"))
    monkeypatch.setattr(users, "GROUP", str(tmp_path / "group"))
    return tmp_path


def refusal(made: Users, user: str) -> str:
    with pytest.raises(NoUser) as caught:
        made.switch(user)
    assert user[:64] in caught.value.detail
    return caught.value.code


def test_nobody_is_the_owner_or_who_this_is() -> None:
    assert Users().switch(None) == STAY
    assert Users(OWNER).switch(None) == Switch("4321:4322")
    assert Users().switch(str(os.geteuid())).who == "-"


@pytest.mark.parametrize("user", ["me", "1001"])
def test_a_user_comes_with_its_groups_and_variables(user: str) -> None:
    switch = Users(OWNER).switch(user)

    assert switch.who == "1001:1002:50:51"
    assert switch.environment == {b"HOME": b"/home/me", b"USER": b"me", b"LOGNAME": b"me"}
    assert not switch.reads_scratch


def test_root_keeps_its_capabilities_and_reads_everything() -> None:
    switch = Users(OWNER).switch("root")
    assert (switch.who, switch.reads_scratch) == ("+0:0", True)


def test_a_user_without_a_home_has_the_root_for_one() -> None:
    assert Users(OWNER).switch("homeless").environment[b"HOME"] == b"/"


@pytest.mark.parametrize(
    "user",
    [
        "none",
        "",
        "1000",
        "short",
        "5",
        "minus",
        "-1",
        "large",
        "4294967295",
        "letters",
        "odd",
        "one",
    ],
)
def test_a_line_that_makes_no_sense_is_nobody(user: str) -> None:
    assert refusal(Users(OWNER), user) == "no_user"
    assert refusal(Users(), user) == "no_user"


def test_of_too_many_groups_some_are_left_out(files: Path) -> None:
    rows = "".join(f"g{number}:x:{number + 100}:me\n" for number in range(100))
    (files / "group").write_text(rows)
    assert Users(OWNER).switch("me").who.count(":") == users.MOST_GROUPS


def test_who_can_not_switch_says_so() -> None:
    assert refusal(Users(), "me") == ("permission_denied" if os.geteuid() != 1001 else "")


@pytest.mark.parametrize("kind", ["missing", "pipe", "large"])
def test_without_a_readable_file_there_is_nobody(
    files: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (files / "passwd").unlink()
    if kind == "pipe":
        os.mkfifo(files / "passwd")
    if kind == "large":
        (files / "passwd").write_text(PASSWD)
        monkeypatch.setattr(users, "LIMIT_BYTES", 10)
    assert refusal(Users(OWNER), "root") == "no_user"
    assert Users().switch(str(os.geteuid())) == STAY
