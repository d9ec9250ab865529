"""Modules become one script: in the order of their needs, with their own names."""

from __future__ import annotations

import pytest

from rlds_beam.viewing.report.report_file import bundle

MODULES = {
    "a.js": 'import { b, c as other } from "./b.js";\n'
    'import { d } from "./source.js";\nexport const a = b + other + d;\n',
    "b.js": 'export { c } from "./c.js";\nexport async function b() {}\nconst hidden = 1;\n',
    "c.js": "var x=1;export{x as c};\n",
    "embedded.js": "export class d {}\n",
}


def test_modules_become_functions_in_the_order_of_their_needs() -> None:
    script = bundle("a.js", MODULES.__getitem__, {"source.js": "embedded.js"})
    places = [script.index(f"const ${name} = (") for name in ("c", "b", "embedded", "a")]
    assert places == sorted(places)
    for line in (
        "const { b: b, c: other } = $b;",
        "return { c: $c.c, b };",
        "return { c: x };",
        "const { d: d } = $embedded;",
        "return { d };",
    ):
        assert line in script
    assert "import " not in script and "export" not in script


def test_modules_in_a_circle_are_refused() -> None:
    modules = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(ValueError, match=r"a\.js -> b\.js -> a\.js"):
        bundle("a.js", modules.__getitem__)


@pytest.mark.parametrize("text", ['import x from "./y.js";', "export default 3;", "export let x = 1;"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not known"):
        bundle("a.js", {"a.js": text}.__getitem__)
