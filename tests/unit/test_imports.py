"""The mathematical core runs wherever torch does."""

import subprocess
import sys

BLOCKED = ("safetensors", "sklearn", "scipy", "matplotlib", "typer", "rich")


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
