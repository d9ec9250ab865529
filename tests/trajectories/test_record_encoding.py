"""Trajectory records: both public readers return the written values."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlds_beam.encoding.tfds import features
from rlds_beam.encoding.tfds.dataset_info import SplitInfo, dataset_info_json
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import Items, Windows
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.record_encoding import TrajectoryEncoder
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec, encode_spec

KEY = EpisodeKey("testing/1.0.0", "train", 0, 0)


def list_leaves(*observation: SpecLeaf) -> tuple[SpecLeaf, ...]:
    return (
        SpecLeaf("step_type", "int32", ()),
        *observation,
        SpecLeaf("action", "float32", (2,)),
        SpecLeaf("next_step_type", "int32", ()),
        SpecLeaf("reward", "float32", ()),
        SpecLeaf("discount", "float32", ()),
    )


def make_frames(leaves: tuple[SpecLeaf, ...], n: int, seed: int, most: int = 64) -> Frames:
    """Makes frames of random bits; int64 values have at most `most` bits, which sets the length of their varints."""
    rng = np.random.default_rng(seed)
    columns = {}
    for leaf in leaves:
        shape = (n, *leaf.shape)
        bits = rng.integers(0, 256, (*shape, leaf.numpy_dtype.itemsize), np.uint8)
        columns[leaf.path] = bits.view(leaf.dtype)[..., 0]
        if leaf.dtype == "int64" and most < 64:
            columns[leaf.path] = rng.integers(0, 1 << most, shape)
        if leaf.encoding == "jpeg":
            data = np.empty(n, object)
            data[:] = encode_jpeg(columns[leaf.path])
            data[n // 2] = b""  # the image of an added step
            columns[leaf.path] = EncodedImages(data, leaf.shape)
    columns["step_type"] = np.array([0, *[1] * (n - 2), 2][-n:], np.int32)
    return Frames(columns, KEY)


DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
PAIRS = ItemOptions()
SHAPES = {
    "pairs": PAIRS,
    "frames": ItemOptions(items="frames"),
    "episodes": ItemOptions(items="episodes"),
    "strided": ItemOptions(items="sequences", sequence_length=3, stride_length=2),
    "tiled": ItemOptions(
        items="sequences", sequence_length=4, stride_length=3, pad_end_of_episodes=True, tile_end_of_episodes=True
    ),
    "padded": ItemOptions(items="sequences", sequence_length=12, pad_end_of_episodes=True),
}


STATE = SpecLeaf("observation", "float32", (17,))


def every_dtype() -> tuple[SpecLeaf, ...]:
    return list_leaves(
        *(SpecLeaf(f"observation/nested/{dtype}", dtype, (3,) if i % 2 else ()) for i, dtype in enumerate(DTYPES)),
        SpecLeaf("observation/grid", "uint8", (4, 5)),
        SpecLeaf("observation/image", "uint8", (16, 24, 3)),
    )


def make_items(leaves: tuple[SpecLeaf, ...], options: ItemOptions, n: int = 7, seed: int = 0) -> Items:
    return Items(make_frames(leaves, n, seed), Windows.from_frames(n, options))


def spec_of(leaves: tuple[SpecLeaf, ...], options: ItemOptions) -> TrajectorySpec:
    return TrajectorySpec(leaves, () if options.items == "frames" else (options.length,))


def write(directory, encoder, batches):
    """Writes one shard with the metadata that the readers need; returns its path."""
    encoded = [encoder.encode(items) for items in batches]
    path = directory / "sample-train.tfrecord-00000-of-00001"
    path.write_bytes(b"".join(bytes(c) for e in encoded for c in e.buffers))
    path.with_name(path.name + ".spec").write_bytes(frame(encode_spec(encoder.fields)))
    split = SplitInfo("train", (sum(e.count for e in encoded),))
    (directory / "dataset_info.json").write_text(json.dumps(dataset_info_json("sample", "1.0.0", [split])))
    fields = {field.path: field for field in encoder.fields}
    (directory / "features.json").write_text(json.dumps(features.features_json(fields)))
    return str(path)


def expected_of(leaves, batches, options):
    """[{path: value of the item}, ...], gathered with items.py."""
    rows = []
    for items in batches:
        columns = {leaf.path: items.gather(leaf.path) for leaf in leaves}
        for k in range(len(items)):
            rows.append({p: c[k, 0] if options.items == "frames" else c[k] for p, c in columns.items()})
    return rows


def flat(nest, prefix=""):
    if isinstance(nest, dict):
        children = nest.items()
    elif hasattr(nest, "_asdict"):
        children = nest._asdict().items()
    elif isinstance(nest, tuple):
        children = ((str(i), child) for i, child in enumerate(nest))
    else:
        return {prefix: np.asarray(nest)}
    return {p: v for name, child in children for p, v in flat(child, f"{prefix}/{name}" if prefix else name).items()}


def read_with_tf_agents(path, **kwargs):
    from tf_agents.utils import example_encoding_dataset

    dataset = example_encoding_dataset.load_tfrecord_dataset([path], add_batch_dim=False, **kwargs)
    return [flat(element) for element in dataset.as_numpy_iterator()]


def read_with_tfds(directory):
    import tensorflow_datasets as tfds

    dataset = tfds.builder_from_directory(directory).as_dataset("train", shuffle_files=False)
    return [flat(element) for element in tfds.as_numpy(dataset)]


def assert_same(read, expected):
    assert len(read) == len(expected)
    for got, want in zip(read, expected, strict=True):
        assert got.keys() == want.keys()
        for path, value in want.items():
            assert got[path].dtype == value.dtype, path
            np.testing.assert_array_equal(got[path], value, err_msg=path)


@pytest.mark.parametrize("name", SHAPES)
def test_both_readers_read_every_leaf(tmp_path, name):
    options, leaves = SHAPES[name], every_dtype()
    batches = [make_items(leaves, options, n, seed=n) for n in (7, 1, 9)]
    path = write(tmp_path, TrajectoryEncoder(spec_of(leaves, options)), batches)
    expected = expected_of(leaves, batches, options)
    assert len(expected) > 2
    assert_same(read_with_tfds(tmp_path), expected)
    if name == "episodes":
        with pytest.raises(ValueError, match="Dimension 0 is invalid"):  # the documented limit
            read_with_tf_agents(path)
    else:
        assert_same(read_with_tf_agents(path), expected)


@pytest.mark.parametrize("images", ["raw", "jpeg"])
@pytest.mark.parametrize("name", SHAPES)
def test_episodes_encoded_together_give_the_same_bytes(name, images):
    options = SHAPES[name]
    leaves = [leaf for leaf in every_dtype() if images == "raw" or leaf.path != "observation/grid"]
    batches = [make_items(leaves, options, n, seed=n) for n in (7, 1, 9, 9, 2, 40, 3)]
    alone = TrajectoryEncoder(spec_of(leaves, options), images)
    expected = [alone.encode(items) for items in batches]
    written = [b"".join(map(bytes, one.buffers)) for one in expected]
    encoder = TrajectoryEncoder(spec_of(leaves, options), images)
    prepared = [encoder.prepare(items) for items in batches]
    together = encoder.encode_all(prepared)
    assert together.count == sum(one.count for one in expected)
    assert b"".join(map(bytes, together.buffers)) == b"".join(written)
    for one, content in zip(prepared, written, strict=True):
        names = 100 * one.windows.count * (len(one.holes) + one.windows.length)
        assert len(content) <= one.size + names


@pytest.mark.parametrize("extremes", [(0, 127), (-1, 5), (0, 128), (-(2**63), 2**63 - 1), (0, 0)])
def test_int64_of_any_size(tmp_path, extremes):
    leaves = list_leaves(SpecLeaf("observation", "int64", (2,)))
    items = make_items(leaves, SHAPES["tiled"], 6)
    items.frames.columns["observation"][:] = extremes
    path = write(tmp_path, TrajectoryEncoder(spec_of(leaves, SHAPES["tiled"])), [items])
    expected = expected_of(leaves, [items], SHAPES["tiled"])
    assert_same(read_with_tfds(tmp_path), expected)
    assert_same(read_with_tf_agents(path), expected)


def test_columns_may_be_views(tmp_path):
    leaves = list_leaves(STATE)
    frames = make_frames(leaves, 6, 0)
    unaligned = np.frombuffer(b"x" + frames["action"].tobytes(), np.float32, offset=1).reshape(6, 2)
    strided = np.repeat(frames["observation"], 2, axis=0)[::2]
    viewed = Frames({**frames.columns, "action": unaligned, "observation": strided}, KEY)
    encoder = TrajectoryEncoder(spec_of(leaves, PAIRS))
    windows = Windows.from_frames(6, PAIRS)
    got, want = (b"".join(map(bytes, encoder.encode(Items(f, windows)).buffers)) for f in (viewed, frames))
    assert got == want


@pytest.mark.parametrize(
    ("dtype", "cast"), [("bool", "uint8"), ("bfloat16", "float32"), ("uint32", "int64"), ("uint64", "int64")]
)
def test_the_error_for_a_dtype_names_field_and_cast(dtype, cast):
    with pytest.raises(UsageError, match=rf"observation/gripper: {dtype}.*--cast=observation/gripper={cast}"):
        TrajectoryEncoder(spec_of(list_leaves(SpecLeaf("observation/gripper", dtype, (2,))), PAIRS))


IMAGE = SpecLeaf("observation/camera", "uint8", (16, 24, 3))


def image_items(options, n=5, gray=False):
    """A JPEG column with an absorbing image at its end, its pixels, and a column of pixels."""
    leaves = list_leaves(IMAGE, SpecLeaf("observation/depth", "uint8", (8, 8, 1)))
    frames = make_frames(leaves, n, 0)
    smooth = np.add.outer(np.arange(16), np.arange(24)).astype(np.uint8)[None, :, :, None]
    pixels = np.broadcast_to(smooth, (n, 16, 24, 3)) + np.arange(n, dtype=np.uint8)[:, None, None, None] * 20
    data = np.empty(n, object)
    data[:] = encode_jpeg(pixels)
    data[-1] = ZERO_IMAGE
    frames.columns["observation/camera"] = EncodedImages(data, (16, 24, 3))
    frames.columns["observation/depth"][:] = smooth[:, :8, :8]
    return leaves, Items(frames, Windows.from_frames(n, options))


@pytest.mark.parametrize("name", ["pairs", "frames", "tiled", "episodes"])
def test_encoded_images_as_pixels(tmp_path, name):
    options = SHAPES[name]
    leaves, items = image_items(options)
    write(tmp_path, TrajectoryEncoder(spec_of(leaves, options)), [items])
    pixels = items.frames["observation/camera"][:-1].decode()
    camera = np.concatenate([pixels, np.zeros_like(pixels[:1])])
    decoded = Items(Frames({**items.frames.columns, "observation/camera": camera}, KEY), items.windows)
    assert_same(read_with_tfds(tmp_path), expected_of(leaves, [decoded], options))


@pytest.mark.parametrize("name", ["pairs", "frames", "tiled", "episodes"])
def test_jpeg_reads_back_with_compress_image(tmp_path, name):
    import tensorflow as tf

    options = SHAPES[name]
    leaves, items = image_items(options)
    path = write(tmp_path, TrajectoryEncoder(spec_of(leaves, options), "jpeg"), [items])
    data = items.frames["observation/camera"].data.tolist()
    pixels = [tf.io.decode_jpeg(d).numpy() if d else np.zeros((16, 24, 3), np.uint8) for d in data]
    pixels.append(np.zeros((16, 24, 3), np.uint8))
    readers = [read_with_tfds(tmp_path)]
    if name != "episodes":
        readers.append(read_with_tf_agents(path, compress_image=True))
    for read in readers:
        assert len(read) == len(items)
        for element, row in zip(read, items.index, strict=True):
            for i, step in enumerate(row):
                if name == "frames":
                    camera, depth = element["observation/camera"], element["observation/depth"]
                elif name == "episodes":
                    camera, depth = element["observation/camera"][i], element["observation/depth"][i]
                else:
                    camera, depth = element[f"observation/camera/{i}"], element[f"observation/depth/{i}"]
                np.testing.assert_array_equal(camera, pixels[step])  # not encoded again
                want = items.frames["observation/depth"][step].astype(int) if step >= 0 else 0
                assert np.abs(depth.astype(int) - want).max() <= 3


@pytest.mark.parametrize("shape", [(8, 8, 4), (5, 7)])
def test_leaves_that_compress_image_would_read_as_jpegs_are_refused(shape):
    with pytest.raises(UsageError, match=r"observation/mask.*--images=raw"):
        TrajectoryEncoder(spec_of(list_leaves(SpecLeaf("observation/mask", "uint8", shape)), PAIRS), "jpeg")
