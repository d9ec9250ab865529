from __future__ import annotations

import pytest

pytest.importorskip("rosbags")

from rlds_beam.formats.ros2.cdr import Reader
from rlds_beam.formats.ros2.definitions import definitions_of
from rlds_beam.formats.ros2.messages import Topic


def test_events_of_a_service() -> None:
    """rosbag2 stores the text of the service as the definition of its events."""
    topic = Topic("/add/_service_event", "example/srv/Add_Event", 1, "int64 a\nint64 b\n---\nint64 sum\n", "ros2msg")
    reader = Reader(definitions_of([topic], "", ""))
    assert reader.find(topic.type, "request[0].a").dtype == "int64"
    assert reader.find(topic.type, "info.event_type").dtype == "uint8"
    nothing = topic._replace(definition="---\nbool success\n")
    assert Reader(definitions_of([nothing], "", "")).find(topic.type, "response[0].success").dtype == "bool"
