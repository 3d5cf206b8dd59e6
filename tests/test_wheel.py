"""The wheel is the product: installed elsewhere, without the checkout, it runs a session."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from runner import __version__

CHECKOUT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Place(NamedTuple):
    """Where a program runs, and with which environment."""

    folder: Path
    environment: dict[str, str]


HERE = Place(CHECKOUT, dict(os.environ))


def checked(*command: str | Path, place: Place = HERE) -> subprocess.CompletedProcess[str]:
    """Run a program that has to succeed."""
    done = subprocess.run(
        command,
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as for a release."""
    target = tmp_path_factory.mktemp("dist")
    checked(sys.executable, "-m", "build", "--wheel", "--outdir", target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, in a new virtual environment with nothing but the wheel."""
    place = tmp_path_factory.mktemp("venv")
    venv.create(place, with_pip=True)
    checked(place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    return place / "bin" / "runner"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Place:
    """An empty folder and a new home: somebody who has nothing of ours."""
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNNER_", "XDG_", "PYTHON", "COV_"))
    }
    return Place(folder, {**environment, "HOME": str(home)})


def test_the_wheel_carries_images_policies_and_the_helper(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    travelling = {
        f"runner/assets/{path.relative_to(CHECKOUT)}"
        for top in ("images", "policies")
        for path in (CHECKOUT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    helper = {f"runner/helper/{path.name}" for path in (CHECKOUT / "runner/helper").glob("*.py")}
    assert travelling
    assert travelling <= names
    assert helper <= names
    assert "runner/py.typed" in names


def test_the_wheel_carries_nothing_but_the_package_and_its_metadata(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.partition("/")[0] for name in names} == {
        "runner",
        f"rousseau_runner-{__version__}.dist-info",
    }
    assert not [name for name in names if name.endswith((".pyc", ".sqlite3"))]


def test_the_wheel_names_its_licence_and_its_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = f"rousseau_runner-{__version__}.dist-info"

    assert "License-Expression: Apache-2.0" in archive.read(f"{metadata}/METADATA").decode()
    assert b"Apache License" in archive.read(f"{metadata}/licenses/LICENSE")
    assert b"runner = runner.__main__:main" in archive.read(f"{metadata}/entry_points.txt")


def test_an_installed_wheel_knows_its_version(installed: Path, elsewhere: Place) -> None:
    done = checked(installed, "--version", place=elsewhere)

    assert done.stdout == f"rousseau-runner {__version__}\n"


@pytest.mark.docker
def test_an_installed_wheel_runs_a_session_on_the_images_that_the_checkout_has_built(
    installed: Path, elsewhere: Place
) -> None:
    checked(sys.executable, "-m", "runner", "image", "build")  # nothing, where they are current
    before = current_images(installed, elsewhere)

    done = checked(installed, "run", "--", "echo hi", place=elsewhere)

    assert done.stdout == "hi\n"
    assert "building" not in done.stderr
    assert set(before) >= {"sandbox", "toolbox"}
    assert current_images(installed, elsewhere) == before


def current_images(command: Path, place: Place) -> dict[str, tuple[str, str]]:
    """Images as a command would make them now, in the daemon: by name, their reference and id."""
    listed = json.loads(checked(command, "image", "list", "--json", place=place).stdout)
    return {image["name"]: (image["ref"], image["id"]) for image in listed if image["current"]}


@pytest.mark.docker
def test_an_installed_wheel_keeps_its_records_in_the_home_of_who_runs_it(
    installed: Path, elsewhere: Place
) -> None:
    checked(installed, "run", "--", "true", place=elsewhere)

    home = Path(elsewhere.environment["HOME"])
    assert (home / ".local" / "share" / "rousseau-runner" / "runner.sqlite3").is_file()
    assert "chain is whole" in checked(installed, "audit", "verify", place=elsewhere).stderr
    assert list(elsewhere.folder.iterdir()) == []
