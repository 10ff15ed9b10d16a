"""The surrogate: what the objective says of one batch, at the zeta that was found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rhobust.ascent.inner_problem import Accuracy


@dataclass(frozen=True, repr=False)
class Surrogate:
    """The objective on one batch, at the zeta that was found."""

    value: Tensor
    """Mean psi, a scalar ready for `.backward()`."""
    zeta: Tensor
    """The worst-case inputs (B, ...), detached."""
    center: Tensor
    """The centers of their balls, (B, ...): x, or x with noise."""
    labels: Tensor
    """The labels at zeta (B, ...): y itself unless flips have a finite cost."""
    cost: Tensor
    """c(z, zeta), (B,); its mean is rho_eff."""
    loss: Tensor
    """loss(theta; zeta), (B,), detached; never tempered."""
    accuracy: Accuracy | None
    """How far psi(zeta) is from the sup; None where the maximizer takes a fixed number of steps."""
    gradients: int
    """Gradients in zeta that were computed to find it."""

    @property
    def rho_eff(self) -> float:
        """E c over the batch."""
        return float(self.cost.mean())

    def __repr__(self) -> str:
        mean = f"value={float(self.value.detach()):.4g}, loss={float(self.loss.mean()):.4g}"
        return f"Surrogate({mean}, rho_eff={self.rho_eff:.4g}, gradients={self.gradients})"
