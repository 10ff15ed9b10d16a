"""Which module may import which: the mathematics runs wherever torch does, and no import points up."""

import ast
import subprocess
import sys
from pathlib import Path

import rhobust

BLOCKED = ("numpy", "scipy", "sklearn", "safetensors", "matplotlib", "typer", "rich", "nvflare")

# A layer a line, the lowest first. A module may import from its own layer and from those below it.
LAYERS = [
    line.split()
    for line in """
        errors checks
        files state_files toml interrupts environment version specs setting compiling undisturbed seeding console
        costs regularizers gamma_rules losses memory problem maximizer steps ascent margin oracle multistart validator \
            checked_loss objective optim methods
        models blocks transparent samples npz image_folder data archives batches partitions attacks apgd search svg \
            wasserstein figures radius
        certificates certificate dual borders sups
        evaluate trust shifts corruptions audit
        record step engine eager cuda_graph engines.graphs engines.fusion compose loop remarks fitting \
            averaging observer
        federation engines messages randomness server engines.worker federated_engine simulation \
            aggregators liars
        config defaults runs summary start build trained measurements
        engines.nvflare report
        reproduction
        cli commands progress __main__
    """.strip().splitlines()
]


def layer(module: str) -> int:
    """The number of the layer that the longest known prefix of the name stands in."""
    while module:
        for number, names in enumerate(LAYERS):
            if module in names:
                return number
        module, _, _ = module.rpartition(".")
    return len(LAYERS)  # the root, which names what users are told to import


def imported(path: Path) -> set[str]:
    """The modules of the library that a file imports, inside functions and under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.removeprefix("rhobust.") for name in names if name.startswith("rhobust.")}
    return found


def test_no_import_points_up() -> None:
    root = Path(rhobust.__file__).parent
    upward = [
        f"{name} imports {other}"
        for path in sorted(root.rglob("*.py"))
        for name in [".".join(path.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")]
        for other in imported(path)
        if layer(other) > layer(name)
    ]
    assert upward == []


def test_the_core_trains_with_torch_alone() -> None:
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
