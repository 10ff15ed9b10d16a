"""Packages stand in layers: an import points down, and the mathematics runs wherever torch does."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import rhobust

ROOT = Path(rhobust.__file__).parent
BLOCKED = ("numpy", "scipy", "sklearn", "safetensors", "matplotlib", "typer", "rich", "nvflare")

# A layer a line, the lowest first. A line in brackets is one room: its modules may import each other. A line that is
# indented further belongs to the one before.
LAYERS = (
    """
    [errors checks]
    support
    [costs box regularizers gamma_rules losses memory ascent inputs validator batch_norm checked_loss gamma_parameter
     own_loop surrogate objective optim method]
    models data attacks charts drift
    certificates
    evaluation
    training
    federation
    runs
    deployment report
    reproduction
    commands
""".replace("\n     ", " ")
    .strip()
    .splitlines()
)
LAYER = {room: number for number, line in enumerate(LAYERS) for room in line.strip("[] ").split()}


def modules() -> dict[str, Path]:
    """Every module of the library but the root and `python -m rhobust`, by its name below the root."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if not name.startswith("__")}


def imported(path: Path) -> set[str]:
    """The modules of the library that a file imports, inside functions and under TYPE_CHECKING too."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rhobust":
            below = node.module.removeprefix("rhobust").removeprefix(".")
            names = [f"{below}.{alias.name}".lstrip(".") for alias in node.names]
            found |= {name if name in known else below for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("rhobust.") for alias in node.names if "rhobust." in alias.name}
    return found


def test_every_module_has_a_layer() -> None:
    assert {name.partition(".")[0] for name in modules()} == set(LAYER)


def test_no_import_points_up_or_aside() -> None:
    wrong = []
    for name, path in modules().items():
        room = name.partition(".")[0]
        for other in imported(path):
            below = other.partition(".")[0]
            aside = LAYER[below] == LAYER[room] and below != room and "[" not in LAYERS[LAYER[room]]
            if LAYER[below] > LAYER[room] or aside:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(
        {name: imported(path) for name, path in modules().items()}
    ).prepare()  # raises where there is a cycle


def test_the_mathematics_trains_with_torch_alone() -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))  # importing any of them now fails
import torch, rhobust
model = torch.nn.Linear(2, 1)
objective = rhobust.RobustObjective(model, lambda out, y: (out[:, 0] - y) ** 2, radius=0.1)
optimizer = rhobust.ProximalOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), objective)
before = model.weight.detach().clone()
objective(torch.ones(4, 2), torch.zeros(4)).value.backward()
optimizer.step()
print("trained" if not torch.equal(before, model.weight) and "spgd" in rhobust.methods() else "did not move")
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "trained", answer.stderr
