"""The command line where vLLM is not installed, and wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_tpu_async_patch import cli, demo, envs

pytestmark = pytest.mark.unit


def test_demo_without_vllm_is_one_line_that_says_what_to_install(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "_version", lambda name: None)
    assert cli.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "vllm-tpu" in error and "pip install 'vllm-tpu-async-patch[demo]'" in error


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["demo", "--hosts", "0"], ["demo", "--device-ms", "-1"],
    ["demo", "--requests", "many"], ["emulate"], ["emulate", "--hosts", "2", "--"], ["tiny-model"]])
def test_wrong_usage_exits_with_2_and_names_the_verb(
        arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2
    assert "usage: vllm-tpu-async-patch" in capsys.readouterr().err


def test_emulate_hands_the_command_over_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    monkeypatch.setattr("vllm_tpu_async_patch.emulation.run.emulate",
                        lambda command, **options: seen.update(options, command=command) or 5)
    assert cli.main(["emulate", "--hosts", "2", "--", "vllm", "serve", "--port", "1"]) == 5
    assert seen == {"command": ["vllm", "serve", "--port", "1"], "hosts": 2, "device_ms": 0.0,
                    "port": None}


def test_the_demo_table_says_when_tokens_differ() -> None:
    run = {"mode": "sync", "executor": "x", "async_scheduling": False, "requests": 1,
           "output_tokens": 2, "seconds": 1.0, "steps": 2, "device_busy": 0.5}
    report = {"vllm": "1", "tpu_inference": "1", "ray": "1", "jax": "1", "hosts": 2,
              "device_ms": 40.0, "identical": False, "runs": [run]}
    text = demo.table(report)
    assert text.endswith("tokens identical: NO") and "50.0%" in text and "host-rank" in text


def test_the_readme_has_every_variable() -> None:
    text = Path(__file__).parents[2].joinpath("README.rst").read_text()
    for variable in envs.VARIABLES:
        assert f"\n``{variable.name}`` (" in text
