"""Input = written + rejected, each record exactly once, for any damage and any division of the work."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from directories import bytes_of
from exchanging import commit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds_beam.checking.duplicates import confirm, duplicates_among, find_suspects, scan
from rlds_beam.cli.main import main
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.processing.report import Report
from rlds_beam.testing import BREAKABLE, make_episode, read_items, read_rejected, shard_paths, write_dataset
from rlds_beam.trajectories.items import item_count
from rlds_beam.trajectories.options import ItemOptions

KINDS = ("sound", *BREAKABLE, "empty_record", "text", "torn_example", "missing_field", "unequal_lengths", "wrong_shape")


@dataclasses.dataclass(frozen=True)
class Made:
    """One record of a generated dataset.

    Attributes:
      id: the first number of every observation.
      payload: the bytes.
      sound: whether it breaks no rule on its own (it may still be a duplicate, or damaged later).
      steps: the number of steps.
    """

    id: int
    payload: bytes
    sound: bool
    steps: int


def make_record(kind: str, id: int, steps: int, nested: bool) -> Made:
    """Makes a record; `id` is the first number of every observation."""
    breaks = [kind] if kind in BREAKABLE else []
    inner = ("unexpected_is_first", "unexpected_is_last", "terminal_not_last", "unequal_lengths")
    if kind in (*inner, "non_finite", "discount_out_of_range"):  # the last step's values are void and not checked
        steps = max(steps, 3)
    observation: Any = {"id": 2, "inner/more": 1} if nested else 3
    episode = make_episode(steps, seed=id, observation=observation, breaks=breaks)
    path = "observation/id" if nested else "observation"
    marked = episode.steps[path].copy()
    marked[:, 0] = id
    columns = {**episode.steps, path: marked}
    if kind == "missing_field":
        del columns["reward"]
    if kind == "unequal_lengths":
        columns["action"] = columns["action"][:-1]
    if kind == "wrong_shape":
        columns["action"] = np.zeros((steps, 5), np.float32)
    payload = encode_example(episode.replace(steps=columns))
    if kind == "empty_record":
        payload = b""
    if kind == "text":
        payload = b"no example %d" % id
    if kind == "torn_example":
        payload = payload[:-3]
    return Made(id, payload, kind == "sound", steps)


@st.composite
def records(draw: Any) -> tuple[list[Made], bool]:
    nested = draw(st.booleans())
    kinds = draw(st.lists(st.sampled_from(("sound",) * 12 + KINDS), min_size=1, max_size=14))
    lengths = draw(st.lists(st.integers(1, 6), min_size=len(kinds), max_size=len(kinds)))
    made = [make_record(kind, i + 1, n, nested) for i, (kind, n) in enumerate(zip(kinds, lengths, strict=True))]
    copies = draw(st.lists(st.integers(0, len(made) - 1), max_size=3))
    return made + [made[i] for i in copies], nested


def flip(at: int) -> Callable[[bytes, list[int]], bytes]:
    def apply(data: bytes, offsets: list[int]) -> bytes:
        where = at % max(1, len(data))
        return data[:where] + bytes([data[where] ^ 0x55]) + data[where + 1 :] if data else data

    return apply


def cut(at: int) -> Callable[[bytes, list[int]], bytes]:
    return lambda data, offsets: data[: at % (len(data) + 1)]


def insert(at: int, junk: bytes) -> Callable[[bytes, list[int]], bytes]:
    def apply(data: bytes, offsets: list[int]) -> bytes:
        where = offsets[at % len(offsets)]
        return data[:where] + junk + data[where:]

    return apply


def drop(at: int) -> Callable[[bytes, list[int]], bytes]:
    """Removes a whole record: only the count is wrong."""

    def apply(data: bytes, offsets: list[int]) -> bytes:
        if len(offsets) < 2:
            return data
        i = at % (len(offsets) - 1)
        return data[: offsets[i]] + data[offsets[i + 1] :]

    return apply


DAMAGE = st.one_of(
    st.builds(flip, st.integers(0, 10_000)),
    st.builds(cut, st.integers(0, 10_000)),
    st.builds(insert, st.integers(0, 20), st.binary(min_size=1, max_size=40)),
    st.builds(drop, st.integers(0, 20)),
)

ITEMS = st.sampled_from(
    [
        ItemOptions(),
        ItemOptions(items="frames"),
        ItemOptions(items="episodes"),
        ItemOptions(items="episodes", max_sequence_length=4),
        ItemOptions(items="sequences", sequence_length=3, stride_length=2),
        ItemOptions(items="sequences", sequence_length=4, pad_end_of_episodes=True),
        ItemOptions(items="sequences", sequence_length=3, pad_end_of_episodes=True, tile_end_of_episodes=True),
        ItemOptions(items="sequences", sequence_length=3, across_episodes=True),
    ]
)


# Ground truth, computed independently


def sound_regions(shard: Path) -> tuple[dict[int, bytes], bytes]:
    """The intact records of a file by position, found by plain search, and the uncompressed bytes."""
    data = shard.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    found, at = {}, 0
    while at + 16 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        end = at + 16 + length
        payload = data[at + 12 : end - 4]
        if length <= len(data) - at - 16 and data[at:end] == frame(payload):
            found[at] = payload
            at = end
        else:
            at += 1
    return found, data


def duplicates(source: Any, ranges: Any) -> Mapping[EpisodeKey, EpisodeKey]:
    """`FindDuplicateEpisodes` without Beam."""
    segments = [(work.split, segment) for work in ranges for segment in work.segments]
    suspects = find_suspects(np.concatenate([scan(source.files, i, s) for i, (_, s) in enumerate(segments)])).items()
    found = (confirm(source.dataset, source.files, *segments[i], places) for i, places in suspects)
    return duplicates_among(itertools.chain.from_iterable(found))


def convert_purely(config: ConvertConfig) -> Any:
    """Runs the job without Beam."""
    job = prepare(config)
    known = duplicates(job.source, job.ranges)
    for work in job.open():
        job.converter.convert_range(work, known)
    return commit(job)


def ids_of(items: list[dict[str, Any]], nested: bool) -> list[int]:
    """The episode of each item; for an item across episodes, that of its first frame."""
    path = "observation/id" if nested else "observation"
    return [int(item[path].reshape(-1, item[path].shape[-1])[0, 0]) for item in items]


def assert_every_record_once(
    source: Path, output: Path, made: list[Made], nested: bool, options: ItemOptions, report: dict[str, Any]
) -> None:
    on_disk = {i: sound_regions(path) for i, path in enumerate(shard_paths(source))}
    by_payload = {m.payload: m for m in made}
    rejected = read_rejected(output)
    keys = [EpisodeKey.parse(line["key"]) for line, _ in rejected]
    assert len(set(keys)) == len(keys)  # none twice

    # 1. Every rejected record is the original, and its key points to it.
    damaged: set[int] = set()
    for key, (line, payload) in zip(keys, rejected, strict=True):
        good, data = on_disk[key.shard]
        if line["rule"] == "corrupt_record":
            assert key.position not in good
            assert payload in data
            damaged.add(key.shard)
        else:
            assert good[key.position] == payload

    # 2. Every intact record on disk is either rejected or written.
    rejected_at = set(keys)
    written = [
        by_payload[payload]
        for i, (good, _) in on_disk.items()
        for position, payload in good.items()
        if not any((k.shard, k.position) == (i, position) for k in rejected_at)
    ]
    assert all(m.sound for m in written)
    assert len({m.payload for m in written}) == len(written)  # only the first of equal records
    for m in (m for good, _ in on_disk.values() for p in good.values() if (m := by_payload[p]).sound):
        too_long = options.max_sequence_length is not None and m.steps > options.max_sequence_length
        assert (m in written) != too_long  # valid episodes are written unless too long
    items = read_items(output)
    if options.across_episodes:
        predicted = report["items_predicted"]
        assert set(ids_of(items, nested)) <= {m.id for m in written}
    else:
        expected = Counter({m.id: item_count(m.steps, options) for m in written})
        assert Counter(ids_of(items, nested)) == +expected
        predicted = sum(expected.values())

    # 3. The bytes that belong to no intact record are also in rejected/.
    for i, (good, data) in on_disk.items():
        covered = sum(16 + len(payload) for payload in good.values())
        assert (i in damaged) == (covered < len(data))

    # 4. The report agrees.
    assert report["records"] == report["valid"] + report["repaired"] + report["rejected"]
    assert report["rejected"] == len(rejected)
    assert report["valid"] == len(written)
    assert report["steps"] == sum(m.steps for m in written)
    assert report["items_written"] == report["items_predicted"] == predicted == len(items)
    counted = Counter(line["rule"] for line, _ in rejected)
    for rule, count in counted.items():
        assert report["rules"][rule]["rejected"] >= count
    short = report["rules"].get("short_shard", {}).get("rejected", 0)
    assert sum(count["rejected"] > 0 for count in report["rules"].values()) >= len(counted) + bool(short)


@pytest.fixture
def place():
    """Creates a directory for each example; pytest's tmp_path is shared by all examples of a test."""
    directories = []

    def new() -> Path:
        directories.append(tempfile.mkdtemp(prefix="conservation-"))
        return Path(directories[-1])

    yield new
    for directory in directories:
        shutil.rmtree(directory)


EASY = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def build(
    place: Path, made: list[Made], nested: bool, shards: int, damage: list[Any], packed: bool, seed: int = 0
) -> Path:
    schema = default_schema(make_episode(2, observation={"id": 2, "inner/more": 1} if nested else 3))
    source = write_dataset(place, [m.payload for m in made], shards=shards, schema=schema)
    paths = shard_paths(source)
    for i, (which, apply) in enumerate(damage):
        path = paths[which % len(paths)]
        data = path.read_bytes()
        # Damage may hit damaged bytes: the offsets are those of the original file.
        path.write_bytes(apply(data, _offsets(data) if i == 0 else [0]))
    if packed:
        for path in paths:
            path.write_bytes(gzip.compress(path.read_bytes()))
    return source


def _offsets(data: bytes) -> list[int]:
    offsets = [0]
    while offsets[-1] < len(data):
        offsets.append(offsets[-1] + 16 + int.from_bytes(data[offsets[-1] : offsets[-1] + 8], "little"))
    return offsets


@settings(max_examples=200, **EASY)
@given(
    generated=records(),
    shards=st.integers(1, 4),
    damage=st.lists(st.tuples(st.integers(0, 3), DAMAGE), max_size=3),
    packed=st.booleans(),
    options=ITEMS,
)
def test_input_is_written_plus_rejected(place, generated, shards, damage, packed, options):
    made, nested = generated
    root = place()
    source = build(root, made, nested, shards, damage, packed)
    # If all of the first records are broken in one way, the whole dataset is refused: not tested here.
    accept = ("schema_mismatch",)
    output = root / "out"
    config = ConvertConfig.create(str(source), str(output), accept=accept, **dataclasses.asdict(options))
    report = convert_purely(config)
    assert_every_record_once(source, output, made, nested, options, as_json(report))
    assert as_json(report) == json.loads((output / "report.json").read_text())


def as_json(report: Report) -> Any:
    return json.loads(encode(report))


def check_stderr(text: str, code: int) -> None:
    """With --json, stderr has only the reason for exit code 3."""
    lines = text.splitlines()
    assert len(lines) == (code == 3) and all("exit code 3" in line.partition(": ")[2][:38] for line in lines), text


def mixed_dataset(place: Path) -> tuple[Path, list[Made]]:
    made = [make_record("sound", i + 1, 1 + i % 6, nested=False) for i in range(20)]
    made += [make_record(kind, 30 + i, 4, nested=False) for i, kind in enumerate(KINDS[1:])]
    made += [made[3], made[17]]
    order = np.random.default_rng(0).permutation(len(made))
    made = [made[i] for i in order]
    return build(place, made, False, 3, [(1, flip(333))], False), made


def fingerprint(item: dict[str, Any]) -> bytes:
    return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in item.values())


@pytest.mark.parametrize("options", [ItemOptions(), ItemOptions(items="episodes", max_sequence_length=5)])
def test_any_number_of_shards_holds_the_same(place, options):
    root = place()
    source, made = mixed_dataset(root)
    reference: Any = None
    for shards in (None, 1, 2, 3, 7, 12):
        output = root / f"out-{shards}"
        config = ConvertConfig.create(str(source), str(output), shards=shards, **dataclasses.asdict(options))
        report = as_json(convert_purely(config))
        assert_every_record_once(source, output, made, False, options, report)
        if shards is not None:
            assert len(list(output.glob("*.tfrecord-*.spec"))) == shards
        items = Counter(map(fingerprint, read_items(output)))
        rejected = Counter((line["key"], payload) for line, payload in read_rejected(output))
        if reference is None:
            reference = items, rejected, report
        assert (items, rejected) == reference[:2]
        assert {**report, "bytes_written": 0} == {**reference[2], "bytes_written": 0}


def test_the_same_bytes_on_every_run_and_for_any_number_of_workers(place, capfd):
    root = place()
    source, made = mixed_dataset(root)
    outputs = []
    for name, flags in (("one", []), ("two", ["--workers=2"])):
        outputs.append(root / name)
        assert main(["convert", str(source), str(outputs[-1]), "--json", "--shards=4", *flags]) == 3
        captured = capfd.readouterr()
        check_stderr(captured.err, 3)
        assert_every_record_once(source, outputs[-1], made, False, ItemOptions(), json.loads(captured.out))
    report = as_json(convert_purely(ConvertConfig.create(str(source), str(root / "pure"), shards=4)))
    assert bytes_of(root / "pure") == bytes_of(outputs[0]) == bytes_of(outputs[1])
    assert report["rejected"] > len(KINDS)
