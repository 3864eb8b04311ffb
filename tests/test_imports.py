"""The layers of the package: each file imports only from the rooms below it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "transformer_jax"

# Lowest first. A file may import its own layer's room and all layers below.
LAYERS = [
    ("errors", "significance", "tables"),
    ("config", "files", "moses", "parsing"),
    ("models", "decoding", "metrics", "data", "sharding", "processes", "hlo"),
    ("training.loss", "training.optimizer", "training.writer", "cost", "conformance"),
    ("training.step", "training.progress"),
    ("training.program", "training.interruption"),
    ("checkpointing",),
    ("trained_model", "plans", "grammar"),
    ("inference",),
    ("translation",),
    ("parser",),
    ("evaluation", "visualization"),
    ("training.validation", "training.workdir", "benchmark", "complexity"),
    ("training.loop", "compilation"),
    ("explain", "reproduce"),
    ("command_line",),
    ("commands",),
    ("__main__",),
]
# What each room may import of the package, where that is less than all below it.
ALLOWED = {
    "errors": (),
    "tables": (),
    "config": ("errors",),
    "files": (),
    "data": ("data", "config", "errors", "files", "parsing"),
    "models": ("models", "config"),
    "decoding": ("decoding",),
    "moses": (),
    "significance": (),
    "parsing": ("parsing", "errors", "significance"),
    "metrics": ("errors", "moses", "significance"),
    "hlo": (),
    "sharding": ("config", "errors"),
    "processes": ("errors",),
}
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "jaxtyping"}
WITHOUT_JAX = (
    "errors",
    "config",
    "data",
    "metrics",
    "moses",
    "parsing",
    "significance",
    "hlo",
)

FILES = sorted((ROOT / PACKAGE).rglob("*.py"))


def module_name(path: Path) -> str:
    """The dotted name below the package: "models.layers"; "" is the package."""
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imports_of(source: str, path: Path) -> set[str]:
    """Full names of all imported modules, those inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                # `from transformer_jax import metrics` names a module, not a value.
                ours = whole.startswith(PACKAGE) and is_module(whole)
                names.add(whole if ours else node.module)
    return names


def own_imports(path: Path) -> set[str]:
    """Dotted names below the package of what the file imports from it."""
    names = imports_of(path.read_text("utf-8"), path)
    return {
        name.removeprefix(PACKAGE).removeprefix(".")
        for name in names
        if name.split(".")[0] == PACKAGE
    }


def is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def layer(name: str) -> int | None:
    for number, rooms in enumerate(LAYERS):
        if any(is_in(name, room) for room in rooms):
            return number
    return None


def names_of_files() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in FILES]


def test_imports_in_functions_and_from_the_package_are_seen() -> None:
    source = (
        "import os\nfrom transformer_jax import metrics\n"
        "from transformer_jax.config import freeze\n"
        "def f():\n    import jax.numpy as jnp\n"
    )
    assert imports_of(source, Path("example.py")) == {
        "os",
        "transformer_jax.metrics",
        "transformer_jax.config",
        "jax.numpy",
    }


@pytest.mark.parametrize("path", FILES, ids=names_of_files())
def test_every_file_has_a_layer(path: Path) -> None:
    name = module_name(path)
    # The package itself may offer names of any layer but the top.
    if name not in ("", "training"):
        assert layer(name) is not None, f"add {name} to LAYERS in {__file__}"


@pytest.mark.parametrize("path", FILES, ids=names_of_files())
def test_imports_go_downward_only(path: Path) -> None:
    name = module_name(path)
    own_layer = len(LAYERS) - 1 if name == "" else layer(name)
    for imported in own_imports(path) - {""}:
        below = layer(imported)
        assert below is not None, f"{name} imports {imported}, which has no layer"
        assert own_layer is not None
        # Neighbours in a layer meet only inside one room.
        neighbours = name.split(".")[0] == imported.split(".")[0]
        assert below < own_layer or (below == own_layer and neighbours), (
            f"{name} imports {imported}, which is not below it"
        )


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_low_rooms_import_only_what_they_may(room: str) -> None:
    paths = [path for path in FILES if is_in(module_name(path), room)]
    assert paths
    for path in paths:
        for imported in own_imports(path):
            assert any(is_in(imported, allowed) for allowed in ALLOWED[room]), (
                f"{module_name(path)} imports {imported}"
            )


@pytest.mark.parametrize("room", WITHOUT_JAX)
def test_rooms_of_text_do_not_import_jax(room: str) -> None:
    paths = [path for path in FILES if is_in(module_name(path), room)]
    assert paths
    for path in paths:
        packages = {
            name.split(".")[0] for name in imports_of(path.read_text("utf-8"), path)
        }
        assert not packages & HEAVY, f"{module_name(path)} imports {packages & HEAVY}"


def test_only_scripts_import_the_command_line() -> None:
    importers = {
        module_name(path)
        for path in FILES
        if any(is_in(name, "command_line") for name in own_imports(path))
    }
    assert {name for name in importers if not is_in(name, "commands")} <= {"__main__"}


def test_only_the_top_imports_the_training_loop() -> None:
    importers = {
        module_name(path)
        for path in FILES
        if any(is_in(name, "training.loop") for name in own_imports(path))
    }
    assert importers <= {"__main__", "command_line", "benchmark", "reproduce.runs"}
