"""`--connectors`: a YAML or JSON file, or something in a module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlds_beam.connectors import configuration
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.sequences import AddTimeDimToBatchAndZeroPad
from rlds_beam.connectors.states import AddStatesFromEpisodesToBatch
from rlds_beam.errors import UsageError

LEARNER = """
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 20}
- AddStatesFromEpisodesToBatch: {initial_state: {h: [0.0, 0.0]}}
- BatchIndividualItems
"""


def load(tmp_path: Path, text: str, name: str = "learner.yaml") -> configuration.Configuration:
    (tmp_path / name).write_text(text)
    return configuration.load(str(tmp_path / name))


def test_a_list_of_names_with_arguments(tmp_path):
    loaded = load(tmp_path, LEARNER)
    assert [type(connector).__name__ for connector in loaded.connectors] == [
        "AddObservationsFromEpisodesToBatch",
        "AddColumnsFromEpisodesToTrainBatch",
        "AddTimeDimToBatchAndZeroPad",
        "AddStatesFromEpisodesToBatch",
        "BatchIndividualItems",
    ]
    assert loaded.connectors[2] == AddTimeDimToBatchAndZeroPad(max_seq_len=20)
    assert loaded.connectors[3] == AddStatesFromEpisodesToBatch(initial_state={"h": [0.0, 0.0]})
    assert loaded.fields == StepFields()


def test_a_mapping_says_where_things_are(tmp_path):
    content = {"fields": {"obs": "observation/state", "extras": ["logp"]}, "connectors": ["BatchIndividualItems"]}
    loaded = load(tmp_path, json.dumps(content), "learner.json")
    assert loaded.fields == StepFields(obs="observation/state", extras=("logp",))
    assert len(loaded.connectors) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- AddObservationsFromEpisodeToBatch", "did you mean AddObservationsFromEpisodesToBatch?"),
        ("- AddTimeDimToBatchAndZeroPad: {max_seq_length: 3}", "no argument max_seq_length; did you mean max_seq_len?"),
        ("- AddTimeDimToBatchAndZeroPad: {max_seq_len: 0}", "a sequence has at least one transition"),
        ("- AgentToModuleMapping", "the argument modules is missing"),
        ("- AddTimeDimToBatchAndZeroPad: 20", "expected the name of a connector"),
        ("BatchIndividualItems", "expected a list of connectors"),
        ("{connector: []}", "no entry connector; did you mean connectors?"),
        ("- [", "while parsing"),
        ("- !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("- no_such_module_at_all:Piece", "No module named"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "learner.yaml" in str(caught.value)


def test_pieces_of_the_users(tmp_path, monkeypatch):
    (tmp_path / "own_pieces_of_a_user.py").write_text(
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Scale:\n"
        "    by: float\n"
        "    def __call__(self, batch): return batch\n"
        "def drop(batch): return batch.replace(episodes=())\n"
        "pieces = [Scale(2.0), drop]\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = load(tmp_path, "- own_pieces_of_a_user:Scale: {by: 3.0}\n- own_pieces_of_a_user:drop")
    assert loaded.connectors[0].by == 3.0
    assert len(configuration.load("own_pieces_of_a_user:pieces").connectors) == 2
    with pytest.raises(UsageError, match="argument by is missing"):
        load(tmp_path, "- own_pieces_of_a_user:Scale")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        configuration.load(str(tmp_path / "none.yaml"))
