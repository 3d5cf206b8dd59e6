"""Without a framework its integration says which extra brings it."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("anthropic", "anthropic", "anthropic"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("deepagents", "deepagents", "deepagents"),
        ("inspect", "inspect_ai", "inspect"),
    ],
)
def test_a_missing_framework_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, framework: str, extra: str
) -> None:
    ours = f"runner.integrations.{module}"
    for name in list(sys.modules):
        if name.split(".")[0] == framework or name == ours or name.startswith(f"{ours}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)

    with pytest.raises(ImportError) as caught:
        importlib.import_module(ours)

    assert str(caught.value).endswith(f'pip install "rousseau-runner[{extra}]"')
