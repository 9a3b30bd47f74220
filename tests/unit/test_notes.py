"""Nodes that do not run the same software are told apart before a worker is made."""

from __future__ import annotations

import pytest

from vllm_tpu_async_patch import notes

pytestmark = pytest.mark.unit


def test_equal_installations_pass_wherever_they_lie() -> None:
    driver = notes.installation()
    notes.compare(driver, [{**driver, "node": "tpu-1", "path": "/elsewhere"}, driver])


@pytest.mark.parametrize("what", sorted(set(notes.installation()) - {"node", "path"}))
def test_each_difference_is_named_with_rank_node_and_cure(what: str) -> None:
    driver = notes.installation()
    other = {**driver, "node": "tpu-1", what: "0.0.1"}
    with pytest.raises(notes.NotesDiffer) as raised:
        notes.compare(driver, [driver, other])
    message = str(raised.value)
    for part in ("rank 1 on tpu-1", f"{what} 0.0.1", driver[what], "all nodes",
                 "pip install vllm-tpu-async-patch=="):
        assert part in message
    assert "rank 0" not in message


def test_a_namesake_with_other_content_differs() -> None:
    driver = notes.installation()
    fake = {**driver, notes.PACKAGE: driver[notes.PACKAGE].replace("content ", "content x")}
    with pytest.raises(notes.NotesDiffer, match="content x"):
        notes.compare(driver, [fake])


@pytest.mark.parametrize(("raised", "what"), [
    ("The actor failed to be imported: ModuleNotFoundError: No module named "
     "'vllm_tpu_async_patch'", "lacks this package"),
    ("AttributeError: 'NoneType' object has no attribute 'installation_notes'", "older version"),
])
def test_a_worker_that_cannot_answer_is_explained(raised: str, what: str) -> None:
    explained = notes.explain(RuntimeError(raised))
    assert isinstance(explained, notes.NotesDiffer)
    assert what in str(explained) and "Install on all nodes" in str(explained)
    assert raised in str(explained)


def test_any_other_error_stays_what_it_is() -> None:
    error = ValueError("out of memory")
    assert notes.explain(error) is error
