"""Gradient rules that compiled kernels know, with ordinary and with extreme parameters."""

import eigengrad as eg

RULES = [
    eg.Saturate(),
    eg.Saturate(rtol=0.1),
    eg.Taylor(),
    eg.Taylor(degree=0),
    eg.Taylor(degree=19, eps=0.01),
    eg.Taylor(degree=1000),
    eg.Clip(),
    eg.Clip(threshold=3.0),
    eg.Lorentzian(),
    eg.Lorentzian(broadening=1e-2),
    eg.Mask(),
    eg.Mask(rtol=0.1),
]
