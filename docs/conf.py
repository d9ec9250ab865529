"""How `make docs` builds the pages and the API reference: Sphinx, with MyST for Markdown and the Furo theme."""

import ast
import dataclasses
import re
import sys
import textwrap
from itertools import takewhile
from pathlib import Path

from docutils import nodes

import rlds_beam

project = "rlds-beam"
version = release = rlds_beam.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
sys.path.append(str(Path(__file__).parent))

extensions += ["notebooks"]  # of the tutorials
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"{project} {version}"
html_show_copyright = False
html_use_index = html_domain_indices = False  # the search finds more

highlight_language = "none"  # of a block that does not name its language
myst_enable_extensions = ["attrs_inline", "colon_fence"]  # cards, and classes of pictures
# What is typed has a button; what a command prints (`text`) has none. Prompts in docstrings are not copied.
copybutton_selector = ", ".join(
    f"div.highlight-{language} pre" for language in ("sh", "bash", "python", "yaml", "json", "toml", "docker")
)
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
myst_heading_anchors = 4  # the anchors that GitHub gives headings
default_role = "py:obj"  # `name` in a docstring links to what it names in the reference; anything else is code
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_mock_imports = ["ray", "tensorflow", "tf_agents"]  # slow to import, and shown by unknown names
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def link_as_files(app, name, source):
    """Links to Markdown outside of docs/ lead to the file, since there is no such page here."""

    def link(match):
        target = (app.srcdir / name).parent / match[1]
        return match[0] if target.resolve().is_relative_to(app.srcdir) else f"](path:{match[1]})"

    source[0] = re.sub(r"\]\((\.\./[^)]*\.md)\)", link, source[0])


def add_dark_pictures(app, doctree):
    """Puts `NAME-dark.svg` next to each `NAME-light.svg`; Furo shows the one that fits the theme."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith("-light.svg"):
            dark = image.deepcopy()
            dark["uri"] = image["uri"].removesuffix("-light.svg") + "-dark.svg"
            image["classes"].append("only-light")
            dark["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, dark)


def edit_docstring(app, what, name, obj, options, lines):
    """Our docstrings as napoleon and reStructuredText want them."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment: napoleon takes the first line up to a colon for a type
    lines[:] = [re.sub(r"(?<![^\s(])`([.~!][^`]*)`", r"``\1``", line) for line in lines]  # `.spec` is no reference
    for i in reversed(range(2, len(lines))):
        if lines[i].startswith("    ") and not lines[i - 1] and re.match(r"\S", lines[i - 2]):
            block = takewhile(lambda line: not line or line.startswith("    "), lines[i:])
            lines[i:i] = [f".. code-block:: {language_of(block)}", ""]  # an indented block is code, as in Markdown
    fields = [field for field in option_fields(obj) if what == "class"]
    if fields:
        lines += ["", "Attributes:", *map(describe_option, fields), ""]


def language_of(block):
    """`python` if the lines are a program, `none` if they are a picture or a table."""
    try:
        ast.parse(textwrap.dedent("\n".join(block)))
    except SyntaxError:
        return "none"
    return "python"


def edit_signature(app, what, name, obj, options, signature, returned):
    """Shorter signatures: options are listed below them, and a default that is made by a function is not Python."""
    if what == "class" and option_fields(obj):
        return "(...)", returned
    return signature and signature.replace("<factory>", "..."), returned


def option_fields(obj):
    """The fields of a class of options: those with the help of a flag."""
    fields = dataclasses.fields(obj) if isinstance(obj, type) and dataclasses.is_dataclass(obj) else ()
    return [field for field in fields if "help" in field.metadata]


def describe_option(field):
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    return f"  {field.name.replace('_', chr(92) + '_')} ({field.type}{default}): {field.metadata['help']}"


def skip_member(app, what, name, obj, skipped, options):
    """Leaves out the fields of named tuples, which the docstrings of their classes describe."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def find_in_core(app, env, node, content):
    """`Episode` on the page of another module is `rlds_beam.Episode`."""
    if node.get("reftype") != "obj" or "." in node["reftarget"]:
        return None
    target = f"rlds_beam.{node['reftarget']}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)


def setup(app):
    app.connect("missing-reference", find_in_core)
    app.connect("source-read", link_as_files)
    app.connect("doctree-read", add_dark_pictures, priority=100)  # before Sphinx collects the pictures
    app.connect("autodoc-process-docstring", edit_docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", edit_signature)
    app.connect("autodoc-skip-member", skip_member)
