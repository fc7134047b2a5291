"""How right each gradient of a whitening layer is, measured where it matters: along the training of a network.

    with record_whitening(model, every=10) as recording:
        train(model)
    recording.report().write("fidelity")

For every layer the covariance and the gradient that reached the whitening matrix are recorded. On these same inputs the
gradient of every method is compared with the exact one, by divided differences in float64.
"""

from .measure import Measurement, Spectrum, measure, spectrum
from .methods import TAYLOR_DEGREES, fidelity_methods
from .recorder import Recording, record_whitening
from .report import Fidelity
from .snapshot import Snapshot

__all__ = [
    "TAYLOR_DEGREES",
    "Fidelity",
    "Measurement",
    "Recording",
    "Snapshot",
    "Spectrum",
    "fidelity_methods",
    "measure",
    "record_whitening",
    "spectrum",
]
