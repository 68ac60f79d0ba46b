"""The browser client: its types, and its arithmetic. The tests themselves are in TypeScript (`clients/web/test`)."""

from __future__ import annotations

from pathlib import Path

from support.node import CLIENT, needs_node, run_node

SETS = ("breast_cancer", "otto", "shuttle", "digits")


@needs_node
def test_the_client_has_no_type_errors() -> None:
    run_node("node_modules/typescript/bin/tsc", "--noEmit")


@needs_node
def test_encodings_and_refusals_are_those_of_python() -> None:
    names = ("embedding", "lift", "graph")
    run_node("--test", *(f"test/{name}.test.ts" for name in names))


@needs_node
def test_the_page_in_the_package_is_what_its_source_builds(tmp_path: Path) -> None:
    shipped = CLIENT.parents[1] / "src" / "quad4fhe" / "serve" / "web"
    before = {path.name: path.read_bytes() for path in shipped.iterdir()}
    run_node("build.mjs", str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
