"""The surrogate: what the objective says of one batch, at the zeta that was found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rhobust.ascent.inner_problem import Accuracy
from rhobust.losses import tempered
from rhobust.sample_weights import weighted_mean
from rhobust.support.compiling import compilable


@dataclass(frozen=True, repr=False)
class Surrogate:
    """The objective on one batch, at the zeta that was found."""

    value: Tensor
    """Mean psi, weighted where samples have weights: a scalar ready for `.backward()`."""
    zeta: Tensor
    """The worst-case inputs (B, ...), detached."""
    center: Tensor
    """The centers of their balls, (B, ...): x, or x with noise."""
    labels: Tensor
    """The labels at zeta (B, ...): y itself unless flips have a finite cost."""
    cost: Tensor
    """c(z, zeta), (B,); its mean, weighted where samples have weights, is rho_eff."""
    loss: Tensor
    """loss(theta; zeta), (B,), detached; never tempered."""
    accuracy: Accuracy | None
    """How far psi(zeta) is from the sup; None where the maximizer takes a fixed number of steps."""
    gradients: int
    """Gradients in zeta that were computed to find it."""
    weight: Tensor | None = None
    """How much each sample counts, (B,); None where all count the same."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples, weighted where they have weights."""
        return weighted_mean(values, self.weight)

    @property
    def rho_eff(self) -> float:
        """E c over the batch."""
        return float(self.mean(self.cost))

    def __repr__(self) -> str:
        mean = f"value={float(self.value.detach()):.4g}, loss={float(self.mean(self.loss)):.4g}"
        return f"Surrogate({mean}, rho_eff={self.rho_eff:.4g}, gradients={self.gradients})"


@compilable
def mean_psi(
    loss: Tensor, cost: Tensor, gamma: Tensor, radius: float, temper: float, weight: Tensor | None = None
) -> Tensor:
    """The mean of psi over the samples, whose gradient in gamma is rho - E c."""
    return weighted_mean(tempered(loss, temper), weight) + gamma * (radius - weighted_mean(cost, weight))
