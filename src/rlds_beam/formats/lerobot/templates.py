"""Fill in `data_path` and `video_path` from a LeRobot dataset's info.json, which is not trusted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from rlds_beam import naming
from rlds_beam.errors import UsageError
from rlds_beam.text import shortened

_NUMBER = re.compile(r"\{(\w+)(?::0?(?:1?\d|20)d)?\}")
"""A placeholder of LeRobot: `{chunk_index:03d}`, with up to 20 digits."""
_KEY = "{video_key}"


@dataclasses.dataclass(frozen=True)
class PathTemplate:
    """A template that only gives files in the dataset's directory.

    Attributes:
      text: the template; `str.format` can fill it in safely.
    """

    text: str

    @classmethod
    def of(cls, text: object, numbers: Iterable[str], where: str, keys: Iterable[str] = ()) -> PathTemplate:
        """Checks a template.

        Args:
          text: the template: `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.
          numbers: the names of numeric placeholders.
          where: the file and field with the template, for the error.
          keys: the values of `{video_key}`; empty for data files.

        Raises:
          UsageError: it has other placeholders or formats, or its files could be outside the dataset.
        """
        known, keys = tuple(numbers), tuple(keys)
        template = text if isinstance(text, str) else ""
        plain = _NUMBER.sub(lambda match: "0" if match[1] in known else match[0], template)
        foreign = bool({"{", "}"} & set(plain.replace(_KEY, "") if keys else plain))
        for sample in [plain.replace(_KEY, key) for key in keys] or [plain]:
            if foreign or not naming.is_file_path(sample):
                expected = [*(f"{{{name}:03d}}" for name in known), *([_KEY] if keys else [])]
                raise UsageError(
                    f"{where} is {shortened(repr(text), 80)}: expected a path in the dataset's directory, with "
                    f"{', '.join(expected)}" + ("" if foreign else f"; got {shortened(repr(sample), 80)}")
                )
        return cls(template)

    def fill(self, numbers: dict[str, int], key: str = "") -> str:
        """The path of a file in the dataset's directory. Raises ValueError if a number is not a number."""
        for name, value in numbers.items():
            if type(value) is not int:
                raise ValueError(f"{name} is {shortened(repr(value), 80)}, which is not a number")
        return self.text.format(video_key=key, **numbers)
