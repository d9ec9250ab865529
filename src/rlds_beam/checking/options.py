"""Options that set what to do with an episode that breaks a rule."""

from __future__ import annotations

import dataclasses

from rlds_beam.checking.rules import POLICIES, RENAMED, REPORTED, RULES, Policy
from rlds_beam.errors import UsageError
from rlds_beam.images.headers import MAX_PIXELS
from rlds_beam.options import Options, option
from rlds_beam.text import did_you_mean

_IMAGE_RULES = frozenset(("undecodable_image", "image_too_large"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """What to do with an episode that breaks a rule (rlds-beam help rules).

    If a rule is named several times, fail wins over repair, and repair over accept.
    """

    accept: tuple[str, ...] = option((), "rules that episodes may break (comma-separated)", metavar="RULES")
    repair: tuple[str, ...] = option((), "rules whose violations are repaired, if possible", metavar="RULES")
    fail: tuple[str, ...] = option((), "rules whose first violation ends the job", metavar="RULES")
    max_image_pixels: int = option(MAX_PIXELS, "most pixels of an image", least=1)
    decode_images: bool = option(False, "decode every image to check it, not only its header")
    propensity_fn: str | None = option(
        None,
        "module:function that takes an episode's steps (columns by name) and returns the propensity of each action; "
        "propensity_mismatch if the recorded one differs",
        code=True,
        metavar="FUNCTION",
    )
    reject: str | None = option(None, "also reject by signal: 'frozen_camera > 0.2, steps < 5'", metavar="CONDITIONS")
    check_unused: bool = option(False, "also check unused fields, and void values of last steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in ("accept", "repair", "fail"):
            for rule in getattr(self, policy):
                if rule not in RULES:
                    hint = f"; it is now {RENAMED[rule]}" if rule in RENAMED else did_you_mean(rule, RULES)
                    raise UsageError(f"--{policy}={rule}: unknown rule{hint} (rlds-beam help rules lists them)")
                if policy not in POLICIES[rule]:
                    can = ", ".join(r for r in RULES if policy in POLICIES[r])
                    raise UsageError(f"--{policy}={rule}: {rule} cannot be {policy}ed; these can: {can}")
        self.check_reject()

    @property
    def needs_images(self) -> bool:
        """Whether the options ask for checks that read images which nothing else needs, or run user code on steps."""
        return (
            self.check_unused
            or self.decode_images
            or self.max_image_pixels != MAX_PIXELS
            or self.reject is not None
            or self.propensity_fn is not None
            or not _IMAGE_RULES.isdisjoint(self.fail)
        )

    def check_reject(self) -> None:
        """Raises UsageError if `reject` is malformed, or needs the whole dataset."""
        if self.reject is not None:
            from rlds_beam.checking.signals.conditions import check_single, parse_reject

            check_single(parse_reject(self.reject))

    def policy(self, rule: str) -> Policy:
        """The policy for an episode that breaks `rule`."""
        if rule in self.fail:
            return "fail"
        if rule in self.repair:
            return "repair"
        if rule in self.accept or rule in REPORTED:
            return "accept"
        return "reject"
