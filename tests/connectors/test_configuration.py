"""`--connectors`: a YAML or JSON file, or module:name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlds_beam import connectors
from rlds_beam.cli.main import main
from rlds_beam.connectors import configuration
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.learner.sequences import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset

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


def test_a_mapping_sets_the_fields(tmp_path):
    content = {"fields": {"obs": "observation/state", "extras": ["logp"]}, "connectors": ["BatchIndividualItems"]}
    loaded = load(tmp_path, json.dumps(content), "learner.json")
    assert loaded.fields == StepFields(obs="observation/state", extras=("logp",))
    assert len(loaded.connectors) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- AddObservationsFromEpisodeToBatch", "did you mean AddObservationsFromEpisodesToBatch?"),
        ("- AddTimeDimToBatchAndZeroPad: {max_seq_len: 0}", "max_seq_len=0: expected 1 or more"),
        ("- AddTimeDimToBatchAndZeroPad: 20", "expected names of connectors"),
        ("- !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("- DropNoOpSteps: {threshold: 1e-4}", "got `str`, '1e-4' (YAML reads it as text: write a dot, 1.0e-4)"),
    ],
)
def test_error_messages(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "learner.yaml" in str(caught.value)


INLINE = {
    "FlipChannels": [connectors.FlipChannels()],
    "MinimumLength(10),FlipChannels": [connectors.MinimumLength(10), connectors.FlipChannels()],
    " MinimumLength( transitions = 10 ) , ": [connectors.MinimumLength(10)],
    "ResizeImages(64, width=32, fields=['observation/a', 'observation/b.json'])": [
        connectors.ResizeImages(64, 32, ("observation/a", "observation/b.json"))
    ],
    'RotateImages(180),DropFields("info:x")': [connectors.RotateImages(180), connectors.DropFields("info:x")],
}


@pytest.mark.parametrize("text", INLINE)
def test_connectors_on_the_command_line(text):
    assert list(configuration.load(text).connectors) == INLINE[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FlipChanels", "there is no connector FlipChanels; did you mean FlipChannels?"),
        ("RotateImages", "RotateImages: missing a required argument: 'degrees'; it takes degrees, fields, quality"),
        ("MinimumLength('2')", "MinimumLength: transitions: Expected `int`, got `str`, '2'"),
        ("FlipChannels(open('x'))", "expected a list such as"),
        ("FlipChannels(),open('called', 'w')", "there is no connector open"),
    ],
)
def test_errors_on_the_command_line_name_the_connector_and_its_arguments(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        configuration.load(text)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


CALLED = """
import pathlib

def touch(*_, **__): pathlib.Path("called").touch()

class Touch:
    def __init__(self, *_, **__): touch()
    def __call__(self, *_): touch()

touching = Touch.__new__(Touch)
"""
NAMED_IN_A_FILE = [
    "- {name}",
    "- {name}: {{path: x}}",
    "- SelectEpisodes: {{function: '{name}'}}",
    "- TransformTrajectory: {{function: '{name}'}}",
    "- FromRllib: {{connector: '{name}', rl_module: '{name}'}}",
]


@pytest.mark.parametrize("what", ["touch", "Touch", "touching"])
@pytest.mark.parametrize("entry", NAMED_IN_A_FILE)
def test_a_file_calls_nothing_but_connectors(tmp_path, monkeypatch, entry, what):
    """Anything else it names, for example `subprocess:Popen`, is imported but not called."""
    if "FromRllib" in entry:
        pytest.importorskip("ray")
    (tmp_path / "anything_at_all.py").write_text(CALLED)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"anything_at_all:{what} was not called: .*@rlds_beam.configurable"):
        load(tmp_path, entry.format(name=f"anything_at_all:{what}"))
    assert not (tmp_path / "called").exists()


def test_a_class_named_by_the_flag(tmp_path, monkeypatch, capsys):
    """A class whose objects cannot be connectors is not called; an error in one that can is a single line."""
    (tmp_path / "own_classes.py").write_text(
        "class Other:\n    def __init__(self): open('called', 'w')\n"
        "class Raises:\n    def __init__(self): raise ValueError('no')\n    def __call__(self, batch): return batch\n"
    )
    monkeypatch.chdir(tmp_path)
    source = write_dataset(tmp_path / "data", [make_episode(4)])
    for name, said in {
        "own_classes:Other": "own_classes:Other was not called: ",
        "subprocess:Popen": "Popen was not called: ",
        "own_classes:Raises": "--connectors=own_classes:Raises: raised ValueError: no (",
    }.items():
        assert main(["convert", str(source), "out", f"--connectors={name}"]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
    assert not (tmp_path / "called").exists()


MARKED = """
import rlds_beam
from rlds_beam.connectors import Connector, ConnectorPipeline, EpisodeConnector

@rlds_beam.configurable
def function(*given): return given[0]

@rlds_beam.configurable
def factory(limit): return function

class Explicit(Connector):
    def __call__(self, batch): return batch

class Derived(EpisodeConnector):
    def edit(self, episode, fields): return episode

pipeline = ConnectorPipeline([Derived()])

def toto_dataset_transform(trajectory): return trajectory
"""


@pytest.mark.parametrize(
    "entry",
    [
        "function",
        "factory: {limit: 1}",
        "Explicit",
        "Derived",
        "pipeline",
        "SelectEpisodes: {function: NAME:function}",
        "TransformTrajectory: {function: NAME:toto_dataset_transform}",
    ],
)
def test_connectors_and_marked_functions_may_be_named(tmp_path, monkeypatch, entry):
    (tmp_path / "marked_pieces.py").write_text(MARKED)
    monkeypatch.chdir(tmp_path)
    name = entry.replace("NAME:", "marked_pieces:") if "NAME" in entry else f"marked_pieces:{entry}"
    assert len(load(tmp_path, f"- {name}").connectors) == 1
