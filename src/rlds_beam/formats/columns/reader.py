"""Read the columns of an output from its manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import COUNT, FILE, TEXT, Kind, Maybe, check_json
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import FORMATS
from rlds_beam.output.files import MANIFEST
from rlds_beam.reading.meaning import KEY, REPRESENTATION, Meaning
from rlds_beam.text import did_you_mean

_FIELD = {
    "path": TEXT,
    "dtype": Kind("the name of a dtype", lambda dtype: dtype in DTYPES),
    "shape": [Maybe(COUNT)],
    "encoding": Kind("the name of an encoding", lambda e: e in ("none", "bytes", "zlib", "text", "png", "jpeg")),
    "names?": [TEXT],
    "representation?": REPRESENTATION,
}
_SCHEMA = {
    "format": Kind(f"one of {', '.join(FORMATS)}", lambda name: name in FORMATS),
    "modules": {"*": [_FIELD]},
}


@dataclasses.dataclass(frozen=True)
class ColumnsManifest:
    """The columns of an output.

    Attributes:
      format: the file format.
      modules: the columns of each module.
      meaning: what is known of the dataset.
    """

    format: str
    modules: Mapping[str, tuple[Field, ...]]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: str) -> ColumnsManifest:
        """Reads the columns of the output at `path`.

        Raises:
          UsageError: the manifest is not one that rlds-beam writes.
        """
        check_json(dict(manifest), _SCHEMA, storage.join(path, MANIFEST))
        check_json([*manifest["modules"]], [FILE], storage.join(path, MANIFEST))
        modules = {
            module: tuple(
                Field(f["path"], f["dtype"], tuple(f["shape"]), f["encoding"]).with_meaning(f) for f in fields
            )
            for module, fields in manifest["modules"].items()
        }
        meaning = Meaning.from_json(manifest.get(KEY, {}), storage.join(path, MANIFEST))
        return cls(manifest["format"], modules, meaning)

    def choose(self, module: str | None, path: str) -> str:
        """The module with this name; by default the only one.

        Raises:
          UsageError: there is no such module, or none is named and there are several.
        """
        known = ", ".join(self.modules)
        if module is None and len(self.modules) != 1:
            raise UsageError(f"{path} holds the columns of {known}: choose one with module=...")
        if module is not None and module not in self.modules:
            hint = did_you_mean(module, self.modules, otherwise=f"it has {known}")
            raise UsageError(f"{path} has no module {module}{hint}")
        return next(iter(self.modules)) if module is None else module
