"""What importing costs, and that the typed surface is the real one."""

import ast
import subprocess
import sys
from pathlib import Path

import fastspec
from fastspec import _fastspec

PACKAGE = Path(fastspec.__file__).parent


def test_import_brings_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, fastspec; print([m for m in ('torch', 'transformers', 'numpy', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_names_exist() -> None:
    assert sorted(set(fastspec.__all__)) == sorted(fastspec.__all__)
    for name in fastspec.__all__:
        assert getattr(fastspec, name) is not None


def test_version_is_that_of_the_package() -> None:
    parts = fastspec.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts)


def stub_classes() -> dict[str, set[str]]:
    """Public attributes of each class in _fastspec.pyi."""
    classes: dict[str, set[str]] = {}
    for node in ast.parse((PACKAGE / "_fastspec.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef):
            names = set()
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.ClassDef):
                    names.add(item.name)
                elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    names.add(item.target.id)
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            for base in bases:
                names |= classes[base]
            classes[node.name] = names
    return {name: {n for n in names if not n.startswith("_")} for name, names in classes.items() if name[0] != "_"}


def test_stub_and_module_agree() -> None:
    module = {name: value for name, value in vars(_fastspec).items() if isinstance(value, type)}
    stub = stub_classes()
    assert set(stub) == set(module)
    for name, cls in module.items():
        assert stub[name] == {attribute for attribute in vars(cls) if not attribute.startswith("_")}, name


def test_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
