"""Reports add up in any order, and the summary states the results."""

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.checking.verdicts import SAMPLES, Verdict
from rlds_beam.encoding.metadata import decode_json, encode
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.processing.report import Report
from rlds_beam.testing import BREAKABLE, make_episode

OPTIONS = CheckOptions(repair=("missing_is_last", "unexpected_is_last"), accept=("discount_out_of_range",))


def _verdict(position: int, breaks: tuple[str, ...] = (), options: CheckOptions = OPTIONS) -> Verdict:
    episode = make_episode(5, seed=position, breaks=breaks)
    return validate_episode(episode.replace(payload=bytes(position)), options)


_VERDICTS = [_verdict(i, breaks) for i, breaks in enumerate([(), *((rule,) for rule in BREAKABLE), BREAKABLE[1:3]])]
_LISTS = st.lists(st.tuples(st.sampled_from(_VERDICTS), st.integers(0, 9)), max_size=40)


@given(_LISTS, st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(picked: list[tuple[Verdict, int]], rng: random.Random) -> None:
    whole = Report()
    for verdict, _ in picked:
        whole.add(verdict)
    groups: dict[int, Report] = {}
    for verdict, worker in rng.sample(picked, len(picked)):
        groups.setdefault(worker, Report()).add(verdict)
    reports = [*groups.values(), Report()]
    rng.shuffle(reports)
    merged = Report()
    while reports:
        some = [reports.pop() for _ in range(rng.randint(1, len(reports)))]
        before = msgspec.to_builtins(some)
        merged = merged.merge(some[0].merge(*some[1:]))
        assert msgspec.to_builtins(some) == before  # merging does not change its inputs
    assert merged == whole
    assert merged.records == merged.valid + merged.repaired + merged.rejected == len(picked)
    assert all(
        len(count.samples) == min(SAMPLES, count.accepted + count.repaired + count.rejected)
        for count in merged.rules.values()
    )
    assert decode_json(encode(merged), Report, "x") == merged


def test_counts() -> None:
    report = Report()
    for verdict in (
        _verdict(1),
        _verdict(2, ("missing_is_last",)),
        _verdict(4, ("unexpected_is_last", "unexpected_is_first")),
        _verdict(8, ("discount_out_of_range",)),
        _verdict(16, ("discount_out_of_range", "non_finite")),
    ):
        report.add(verdict)
    assert (report.records, report.valid, report.repaired, report.rejected) == (5, 2, 1, 2)
    assert (report.episodes, report.steps, report.bytes) == (3, 15, 31)
    assert report.shards == {"train:00000": 5}
    outcomes = {rule: (c.accepted, c.repaired, c.rejected) for rule, c in report.rules.items()}
    assert outcomes == {
        "missing_is_last": (0, 1, 0),
        "unexpected_is_first": (0, 0, 1),
        "unexpected_is_last": (0, 0, 1),
        "discount_out_of_range": (2, 0, 0),
        "non_finite": (0, 0, 1),
    }


def test_parts_of_a_repaired_record_are_one_record() -> None:
    verdict = validate_episode(make_episode("F M L | F L | F L"), OPTIONS)
    report = Report().add(verdict)
    assert (report.records, report.repaired, report.episodes, report.steps) == (1, 1, 3, 7)
    assert report.rules["unexpected_is_last"].samples[0].key == "testing/1.0.0:train:00000@0"


def test_samples_are_those_with_the_smallest_keys() -> None:
    report = Report()
    for position in (900, 100, 20, 3, 1000, 5, 40):
        report.add(_verdict(position, ("non_finite",)))
    assert [EpisodeKey.parse(s.key).position for s in report.rules["non_finite"].samples] == [3, 5, 20, 40, 100]


def test_the_summary_gives_advice() -> None:
    report = Report()
    for position in range(25):
        report.add(_verdict(position, ("missing_is_last",), CheckOptions()))
    report.add(_verdict(30))
    report = report.merge(Report(items_predicted=4, items_written=4, bytes_written=1_234_567))
    assert report.summary().splitlines() == [
        "read      26 records, 330 B",
        "checked   26 episodes: 1 valid, 25 rejected",
        "  missing_is_last: 25 rejected; the last step is not is_last (the episode never ends)",
        "    for example testing/1.0.0:train:00000@0 (is_last: False at step 4, the last one)",
        "    --repair=missing_is_last marks the final step as a truncation",
        "accepted  1 episode, 5 steps",
        "written   4 items (as predicted), 1.2 MB",
    ]
    assert "3 items (NOT the 4 predicted)" in Report(items_predicted=4, items_written=3).summary()
