"""Format a comparison as JUnit XML, which Jenkins and GitLab show: one test case for each compared case."""

import re
from pathlib import Path
from xml.etree import ElementTree

from ..results.compare import Comparison
from .comparison_text import describe_fully, list_unmatched, sort_changes

FAILURES = ("slower", "broken")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed even as references
PATH_START = r"""(?<![^\s"'`(\[{<=:,;|])"""  # at the start of a text, or after one of these characters


def as_junit(comparison: Comparison) -> str:
    """A failure is a regression; what cannot be compared, or not precisely enough, is skipped with its reason."""
    suite = ElementTree.Element("testsuite", name=_clean(f"compare {comparison.base} {comparison.new}"))
    for change in sort_changes(comparison.changes):
        case = _add_case(suite, change.name, (change.new_ms or 0.0) / 1e3)
        description = _clean(describe_fully(change))
        if change.kind in FAILURES:
            ElementTree.SubElement(case, "failure", message=description, type=change.kind).text = description
        elif change.blind:
            ElementTree.SubElement(case, "skipped", message=description)
        else:
            ElementTree.SubElement(case, "system-out").text = description
    for heading, names in list_unmatched(comparison).items():
        for name in names:
            ElementTree.SubElement(_add_case(suite, name, 0.0), "skipped", message=heading)
    counts = {"tests": len(suite), "failures": len(suite.findall("*/failure")), "errors": 0}
    counts["skipped"] = len(suite.findall("*/skipped"))
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):.9f}")
    root = ElementTree.Element("testsuites", suite.attrib)
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, name: str, seconds: float) -> ElementTree.Element:
    """A test case. Its class is the suite with the part, by which Jenkins and GitLab group cases."""
    parts = _clean(name).split("/")
    attributes = {"classname": ".".join(parts[:2]) if len(parts) > 2 else "benchmarks", "name": _clean(name)}
    return ElementTree.SubElement(suite, "testcase", attributes, time=f"{seconds:.9f}")


def _clean(text: str) -> str:
    """Text that XML allows, with paths relative to the working folder, unless that is the root of the file system."""
    folder = Path.cwd()
    if folder != Path(folder.anchor):
        text = re.sub(PATH_START + re.escape(f"{folder}/"), "", text)
    return NOT_XML.sub("", text)
