"""Every rule for episodes, every repair, and properties of both."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.rules import REPAIRABLE, VALUE_RULES, CheckOptions
from rlds_beam.checking.validation import find_violations, repair_episode, validate_episode
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import FailedRuleError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode

OPTIONS = CheckOptions()


def _rules(episode: Episode) -> list[str]:
    verdict = validate_episode(episode, OPTIONS)
    assert (verdict.rejected is None) == (not verdict.violations)
    return [v.rule for v in verdict.violations]


def _with(path: str, values: Any) -> Episode:
    return make_episode(4, columns={path: values})


# The right-hand column of section 1 of the TF-Agents page: what its conversion accepts.
SLIPS_THROUGH = {
    "episode starting with MID": ([make_episode("M M L")], [["missing_is_first"]]),
    "a lone LAST": ([make_episode("L")], [["missing_is_first"]]),
    "unterminated one-step episode": ([make_episode("F")], [["missing_is_last"]]),
    "F F M L": ([make_episode("F F M L")], [["unexpected_is_first"]]),
    "F M | M L in two episodes": (
        [make_episode("F M"), make_episode("M L")],
        [["missing_is_last"], ["missing_is_first"]],
    ),
    "two episodes inside one record": ([make_episode("F M L | F M L")], [["unexpected_is_last"]]),
    "zero-step episode": ([make_episode(0)], [["empty_episode"]]),
    "NaN reward": ([_with("reward", np.array([0, np.nan, 0, 0], np.float32))], [["non_finite"]]),
    "discount 7": ([_with("discount", np.array([1, 7, 1, 1], np.float32))], [["discount_out_of_range"]]),
    "discount -1": ([_with("discount", np.array([1, -1, 1, 1], np.float32))], [["discount_out_of_range"]]),
}


@pytest.mark.parametrize("row", SLIPS_THROUGH)
def test_faults_that_tf_agents_accepts_are_found(row: str) -> None:
    episodes, expected = SLIPS_THROUGH[row]
    assert [_rules(episode) for episode in episodes] == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("F T L", ["terminal_not_last"]),
        ("F M T", ["missing_is_last", "terminal_not_last"]),
        ("F M F M", ["unexpected_is_first", "missing_is_last"]),
        ("F M FL", ["unexpected_is_first"]),
        ("L L", ["missing_is_first", "unexpected_is_last"]),
        ("FL M", ["missing_is_last", "unexpected_is_last"]),
        ("F L M L", ["unexpected_is_last"]),
        ("F M LT", []),
        ("F M L", []),
        ("FL", []),
        ("FLT", []),
    ],
)
def test_boundaries(flags: str, expected: list[str]) -> None:
    assert _rules(make_episode(flags)) == expected


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize(
    "path", ["observation", "observation/a/b", "action", "reward", "discount", "language_embedding"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_in_any_float_column(dtype: Any, path: str, value: float) -> None:
    column = np.zeros((4, 2, 3) if path.startswith("obs") else 4, dtype)
    column[1:3, ...] = value
    verdict = validate_episode(_with(path, column), OPTIONS)
    found = [v for v in verdict.violations if v.rule == "non_finite"]
    assert [(v.field, v.step) for v in found] == [(path, 1)]
    where = f" in {path}[0,0]" if column.ndim > 1 else ""
    assert found[0].detail == f"{value:g} at step 1{where} (2 such steps)"
    outside = [v.rule for v in verdict.violations if v.rule == "discount_out_of_range"]
    assert bool(outside) == (path == "discount" and np.isinf(value))


def test_all_violations_are_found_in_one_pass_and_in_order() -> None:
    columns = {"reward": np.full(5, np.nan), "discount": np.full(5, 3.0), "extra": np.full((5, 1), np.inf)}
    episode = make_episode("M M T F M", columns=columns)
    verdict = validate_episode(episode, OPTIONS)
    assert [(v.rule, v.field) for v in verdict.violations] == [
        ("missing_is_first", "is_first"),
        ("unexpected_is_first", "is_first"),
        ("missing_is_last", "is_last"),
        ("terminal_not_last", "is_terminal"),
        ("non_finite", "reward"),
        ("non_finite", "extra"),
        ("discount_out_of_range", "discount"),
    ]
    assert verdict.rejected is not None
    assert verdict.rejected.rule == "missing_is_first"


def test_faults_found_by_reading_are_treated_alike() -> None:
    fault = Violation("corrupt_record", "the checksum of 40 bytes is wrong")
    episode = Episode(EpisodeKey("d/1.0.0", "train", 1, 2), {}, payload=b"bytes", faults=(fault,))
    verdict = validate_episode(episode, CheckOptions(accept=VALUE_RULES, repair=REPAIRABLE))
    assert verdict.rejected is not None
    assert verdict.rejected.to_json() == {
        "key": "d/1.0.0:train:00001@2",
        "rule": "corrupt_record",
        "detail": "the checksum of 40 bytes is wrong",
        "violations": [{"rule": "corrupt_record", "detail": "the checksum of 40 bytes is wrong"}],
    }
    assert verdict.rejected.payload == b"bytes"
    assert verdict.size == 5


def test_images_are_checked_by_their_headers() -> None:
    cv2 = pytest.importorskip("cv2")
    sound, large = (cv2.imencode(".png", np.zeros((size, size, 3), np.uint8))[1].tobytes() for size in (2, 9))
    expected: dict[tuple[bytes, ...], list[tuple[str, str | None, int | None]]] = {
        (sound, sound): [],
        (sound, b"junk"): [("undecodable_image", "observation/x", 1)],
        (large, b""): [("undecodable_image", "observation/x", 1), ("image_too_large", "observation/x", 0)],
    }
    for data, found in expected.items():
        column = EncodedImages(np.array(data, object), (2, 2, 3))
        verdict = validate_episode(make_episode(2, columns={"observation/x": column}), CheckOptions(max_image_pixels=8))
        assert [(v.rule, v.field, v.step) for v in verdict.violations] == found


# Policies


def test_fail_names_the_place_and_a_remedy() -> None:
    episode = make_episode("F M", key=EpisodeKey("bridge/1.0.0", "train", 3, 77))
    with pytest.raises(FailedRuleError) as error:
        validate_episode(episode, CheckOptions(fail=("missing_is_last",)))
    for part in (
        "bridge/1.0.0",
        "split train",
        "shard 3",
        "position 77",
        "is_last",
        "--fail=missing_is_last",
        "--repair=",
    ):
        assert part in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_accept_keeps_and_counts() -> None:
    episode = make_episode(4, breaks=["non_finite"])
    verdict = validate_episode(episode, CheckOptions(accept=("non_finite",)))
    assert verdict.episodes == (episode,)
    assert verdict.outcomes() == {"non_finite": "accepted"}


def test_a_repair_that_leaves_a_violation_rejects_with_both() -> None:
    verdict = validate_episode(make_episode("F M | F M L"), CheckOptions(repair=("unexpected_is_first",)))
    assert verdict.rejected is not None
    assert verdict.rejected.rule == "missing_is_last"
    assert [v.rule for v in verdict.rejected.violations] == ["unexpected_is_first", "missing_is_last"]
    assert verdict.outcomes() == {"unexpected_is_first": "rejected", "missing_is_last": "rejected"}


# Repairs: input flags, rules, output flags


def _letters(episode: Episode) -> str:
    flags = zip(*(episode.steps[f"is_{name}"] for name in ("first", "last", "terminal")), strict=True)
    return " ".join("".join(c for c, on in zip("FLT", step, strict=True) if on) or "M" for step in flags)


@pytest.mark.parametrize(
    ("flags", "repair", "expected"),
    [
        ("F M M", "missing_is_last", "F M L"),  # a truncation
        ("F", "missing_is_last", "FL"),
        ("F M T", "missing_is_last,terminal_not_last", "F M LT"),  # one repair for both rules
        ("F M T", "missing_is_last", None),
        ("F M T", "terminal_not_last", None),
        ("M M L", "missing_is_first", "F M L"),
        ("F M L | F L", "unexpected_is_last", "F M L | F L"),
        ("F M L | M L", "unexpected_is_last", None),
        ("F M L | M L", "unexpected_is_last,missing_is_first", "F M L | F L"),
        ("F M | F M L", "unexpected_is_first,missing_is_last", "F L | F M L"),
        ("F M | F M L", "unexpected_is_first", None),
        ("F M FL", "unexpected_is_first,missing_is_last", "F L | FL"),
        ("F T M L", "terminal_not_last", None),
        ("F T M L", "terminal_not_last,unexpected_is_last", None),
        ("F T M L", "terminal_not_last,unexpected_is_last,missing_is_first", "F LT | F L"),
        ("F M L", "unexpected_is_last", "F M L"),
    ],
)
def test_repairs(flags: str, repair: str, expected: str | None) -> None:
    episode = make_episode(flags, seed=9)
    verdict = validate_episode(episode, CheckOptions(repair=tuple(repair.split(","))))
    if expected is None:
        assert verdict.episodes == ()
        return
    assert " | ".join(map(_letters, verdict.episodes)) == expected
    assert [str(e.key) for e in verdict.episodes] == [
        "testing/1.0.0:train:00000@9" + (f".{part}" if part else "") for part in range(len(verdict.episodes))
    ]


# Properties


@st.composite
def _episodes(draw: st.DrawFn) -> Episode:
    length = draw(st.integers(0, 9))
    flags = {
        f"is_{name}": np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
        for name in ("first", "last", "terminal")
    }
    reward = np.arange(length, dtype=np.float32)
    if length and draw(st.booleans()):
        reward[draw(st.integers(0, length - 1))] = np.nan
    episode = make_episode(length, columns={**flags, "reward": reward}, seed=draw(st.integers(0, 99)))
    for column in episode.steps.values():
        column.flags.writeable = False  # type: ignore[union-attr]  # the input must not be modified
    return episode


def _expected(episode: Episode) -> list[str]:
    """The rules checked step by step in plain Python."""
    length = len(episode)
    if not length:
        return ["empty_episode"]
    first, last, terminal = (list(episode.steps[f"is_{name}"]) for name in ("first", "last", "terminal"))
    broken = {
        "missing_is_first": not first[0],
        "unexpected_is_first": any(first[i] and not last[i - 1] for i in range(1, length)),
        "missing_is_last": not last[-1],
        "unexpected_is_last": any(last[i] for i in range(length - 1)),
        "terminal_not_last": any(terminal[i] and not last[i] for i in range(length)),
        "non_finite": any(np.isnan(r) and not last[i] for i, r in enumerate(episode.steps["reward"])),
    }
    return [rule for rule, is_broken in broken.items() if is_broken]


@given(_episodes())
def test_violations_equal_a_step_by_step_check(episode: Episode) -> None:
    assert [v.rule for v in find_violations(episode, OPTIONS)] == _expected(episode)


_RULE_SETS = st.lists(st.sampled_from(REPAIRABLE), unique=True).map(tuple)


@given(_episodes(), _RULE_SETS, st.booleans())
def test_properties_of_validation(episode: Episode, repair: tuple[str, ...], accept: bool) -> None:
    options = CheckOptions(repair=repair, accept=("non_finite",) if accept else ())
    verdict = validate_episode(episode, options)
    assert bool(verdict.episodes) == (verdict.rejected is None)
    assert [v.rule for v in verdict.violations] == _expected(episode)
    if verdict.rejected is not None:
        assert set(verdict.rejected.violations) >= {v for v in verdict.violations if options.policy(v.rule) != "accept"}
        assert options.policy(verdict.rejected.rule) != "accept"
        return
    assert all(options.policy(rule) != "reject" for rule in _expected(episode))
    for part in verdict.episodes:
        again = validate_episode(part, CheckOptions(accept=options.accept))
        assert again.rejected is None
        assert again.episodes == (part,)
    void = np.isnan(episode.steps["reward"]) & (not accept)
    reward = np.where(void, np.float32(0), episode.steps["reward"]) if void.any() else episode.steps["reward"]
    assert np.all(np.asarray(episode.steps["is_last"])[void])
    _assert_nothing_lost(episode.replace(steps={**episode.steps, "reward": reward}), verdict.episodes)


@given(_episodes().filter(len), _RULE_SETS)
def test_repair_loses_nothing(episode: Episode, rules: tuple[str, ...]) -> None:
    _assert_nothing_lost(episode, repair_episode(episode, rules))


def _assert_nothing_lost(episode: Episode, parts: tuple[Episode, ...]) -> None:
    assert [part.key.part for part in parts] == list(range(len(parts)))
    for path, column in episode.steps.items():
        joined = np.concatenate([np.asarray(part.steps[path]) for part in parts])
        if path in ("is_first", "is_last"):
            assert np.all(joined >= np.asarray(column))  # repairs only set flags
        else:
            np.testing.assert_array_equal(joined, np.asarray(column))
            if column.flags.writeable is False:  # type: ignore[union-attr]  # unchanged
                assert all(np.shares_memory(part.steps[path], column) for part in parts)  # type: ignore[arg-type]


def test_image_bodies_are_checked_only_on_request() -> None:
    import cv2

    jpeg = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))[1].tobytes()
    tables = jpeg.index(b"\xff\xc4") + 5
    broken = jpeg[:tables] + b"\xff" * 16 + jpeg[tables + 16 :]  # no Huffman table; header and end are intact
    data = np.array([jpeg, broken, jpeg, None], object)[:3]
    episode = make_episode(3, columns={"observation/camera": EncodedImages(data, (32, 32, 3))}, observation={"x": 1})
    assert validate_episode(episode, CheckOptions()).rejected is None
    rejected = validate_episode(episode, CheckOptions(decode_images=True)).rejected
    assert rejected is not None
    assert [(v.rule, v.field, v.step) for v in rejected.violations] == [("undecodable_image", "observation/camera", 1)]
