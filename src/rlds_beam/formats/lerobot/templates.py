"""`data_path` and `video_path` of a LeRobot dataset's info.json, which another person wrote, as names of files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from rlds_beam import naming
from rlds_beam.errors import UsageError
from rlds_beam.text import shortened

_NUMBER = re.compile(r"\{(\w+)(?::0?(?:1?\d|20)d)?\}")
"""A placeholder as LeRobot writes them: `{chunk_index:03d}`; up to 20 digits."""
_KEY = "{video_key}"


@dataclasses.dataclass(frozen=True)
class PathTemplate:
    """A template whose files are all in the dataset's directory.

    Attributes:
      text: the template; `str.format` can fill it in safely.
    """

    text: str

    @classmethod
    def of(cls, text: object, numbers: Iterable[str], where: str, keys: Iterable[str] = ()) -> PathTemplate:
        """Checks a template.

        Args:
          text: `data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`.
          numbers: the placeholders of numbers.
          where: the file and the field that hold it, for the error.
          keys: the values of `{video_key}`; none for data files.

        Raises:
          UsageError: it has other placeholders or formats, or its files could be outside of the dataset.
        """
        known, keys = tuple(numbers), tuple(keys)
        template = text if isinstance(text, str) else ""
        plain = _NUMBER.sub(lambda match: "0" if match[1] in known else match[0], template)
        foreign = bool({"{", "}"} & set(plain.replace(_KEY, "") if keys else plain))
        for sample in [plain.replace(_KEY, key) for key in keys] or [plain]:
            if foreign or not naming.is_file_path(sample):
                expected = [*(f"{{{name}:03d}}" for name in known), *([_KEY] if keys else [])]
                raise UsageError(
                    f"{where} is {shortened(repr(text), 80)}: expected a path below the dataset's directory, with "
                    f"{', '.join(expected)}" + ("" if foreign else f"; {shortened(repr(sample), 80)} is none")
                )
        return cls(template)

    def fill(self, numbers: dict[str, int], key: str = "") -> str:
        """The path of a file below the dataset's directory; raises ValueError if a number is none."""
        for name, value in numbers.items():
            if type(value) is not int:
                raise ValueError(f"{name} is {shortened(repr(value), 80)}, which is not a number")
        return self.text.format(video_key=key, **numbers)
