"""A record's checksum is computed once: copies of a record reuse the checksum verified on reading."""

from __future__ import annotations

import io

import pytest

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.encoding.base import CheckedRecord, Damage, Record
from rlds_beam.encoding.tfrecord import rows as tfrecord_rows
from rlds_beam.encoding.tfrecord.file import read_records
from rlds_beam.encoding.tfrecord.framing import masked_crc
from rlds_beam.encoding.tfrecord.rows import frame, frame_all
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.testing import make_episode, read_payloads, write_dataset


class AddOneToReward(EpisodeConnector):
    def edit(self, episode, fields):
        return episode.with_columns({fields.rewards: episode.steps[fields.rewards] + 1})


PAYLOADS = [b"", b"a", bytes(1000), b"x" * (3 << 20)]
"""The last one is longer than a block and takes another code path."""


def test_every_record_has_the_checksum_of_its_payload():
    records = list(read_records(io.BytesIO(frame_all(PAYLOADS))))
    assert [record.payload for record in records] == PAYLOADS
    for record in records:
        assert isinstance(record, CheckedRecord)
        assert record.crc == masked_crc(record.payload)
        assert record == Record(record.position, record.payload)
    damaged = bytearray(frame(b"abc"))
    damaged[13] ^= 1
    (unit,) = read_records(io.BytesIO(bytes(damaged)))
    assert isinstance(unit, Damage)


@pytest.mark.parametrize("edits", [False, True])
def test_only_edited_records_are_checksummed_again(tmp_path, monkeypatch, edits):
    data = write_dataset(tmp_path / "data", [make_episode(n) for n in (4, 9)])
    connectors = [AddOneToReward()] if edits else []
    job = prepare(ConvertOptions.create(str(data), str(tmp_path / "out"), to="rlds", connectors=connectors))
    job.open()
    summed: list[bytes] = []
    monkeypatch.setattr(tfrecord_rows, "masked_crc", lambda data: summed.append(data) or masked_crc(data))
    for work in job.ranges:
        job.converter.convert_range(work, {})
    before, after = (
        [payload for shard in sorted(path.glob("*.tfrecord-*")) for payload in read_payloads(shard)]
        for path in (data, tmp_path / "out")
    )
    assert summed == (after if edits else [])
    assert (after == before) is not edits
    assert len(after) == 2
